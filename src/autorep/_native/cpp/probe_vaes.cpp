// The limit of AES instructions for two blocks each; all others are those of AVX2.
#include "probe.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

i64 aes(i64 count, u64* sink) {
    constexpr int kChains = 8;
    const __m256i key = _mm256_set1_epi64x(static_cast<long long>(sink[0]));
    __m256i s[kChains];
    for (int k = 0; k < kChains; ++k) s[k] = _mm256_set1_epi64x(k);
    const i64 steps = ceil_div(count, 2 * kChains);
    for (i64 i = 0; i < steps; ++i)
        for (int r = 0; r < 10; ++r)
            for (int k = 0; k < kChains; ++k) s[k] = _mm256_aesenc_epi128(s[k], key);
    for (int k = 0; k < kChains; ++k) sink[0] ^= static_cast<u64>(_mm256_extract_epi64(s[k], 0));
    return steps * 2 * kChains;
}

}  // namespace

const Probes& probes_vaes() {
    static const Probes& others = probes_avx2();
    static const Probes probes = {others.multiply_add46, others.multiply_add52, others.multiply_add64, aes};
    return probes;
}

}  // namespace autorep
#endif
