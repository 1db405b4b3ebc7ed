// Processor limits with AVX-512: 52-bit multiply-add, vpmullq, vector AES.
#include "probe.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

template <class Step>
i64 repeat(i64 count, u64* sink, Step&& step) {
    constexpr int kChains = 24;
    __m512i sums[kChains];
    const __m512i x = _mm512_set1_epi64(static_cast<long long>(sink[0] | 1));
    for (int k = 0; k < kChains; ++k) sums[k] = _mm512_set1_epi64(k);
    const i64 steps = ceil_div(count, 8 * kChains);
    for (i64 i = 0; i < steps; ++i)
#pragma GCC unroll 24
        for (int k = 0; k < kChains; ++k) sums[k] = step(sums[k], x);
    alignas(64) u64 out[8];
    for (int k = 0; k < kChains; ++k) {
        _mm512_store_si512(out, sums[k]);
        for (const u64 word : out) sink[0] ^= word;
    }
    return steps * 8 * kChains;
}

i64 multiply_add52(i64 count, u64* sink) {
    return repeat(count, sink, [](__m512i sum, __m512i x) { return _mm512_madd52lo_epu64(sum, x, x); });
}

i64 multiply_add64(i64 count, u64* sink) {
    return repeat(count, sink, [](__m512i sum, __m512i x) { return _mm512_add_epi64(x, _mm512_mullo_epi64(sum, x)); });
}

i64 aes(i64 count, u64* sink) {
    constexpr int kChains = 16;
    const __m512i key = _mm512_set1_epi64(static_cast<long long>(sink[0]));
    __m512i s[kChains];
    for (int k = 0; k < kChains; ++k) s[k] = _mm512_set1_epi64(k);
    const i64 steps = ceil_div(count, 4 * kChains);
    for (i64 i = 0; i < steps; ++i)
        for (int r = 0; r < 10; ++r)
#pragma GCC unroll 16
            for (int k = 0; k < kChains; ++k) s[k] = _mm512_aesenc_epi128(s[k], key);
    alignas(64) u64 out[8];
    for (int k = 0; k < kChains; ++k) {
        _mm512_store_si512(out, s[k]);
        sink[0] ^= out[0] ^ out[7];
    }
    return steps * 4 * kChains;
}

}  // namespace

const Probes& probes_avx512() {
    static const Probes probes = {multiply_add52, multiply_add52, multiply_add64, aes};
    return probes;
}

}  // namespace autorep
#endif
