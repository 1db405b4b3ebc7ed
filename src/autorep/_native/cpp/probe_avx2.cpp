// Processor limits with AVX2 and AES instructions.
#include "probe.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

// A 64-bit product as the convolution makes it: three 32-bit products and three additions.
i64 multiply_add(i64 count, u64* sink) {
    constexpr int kChains = 6;
    __m256i low[kChains], cross[kChains];
    for (int k = 0; k < kChains; ++k) low[k] = cross[k] = _mm256_set1_epi64x(static_cast<long long>(sink[0]));
    __m256i x = _mm256_set1_epi64x(static_cast<long long>(sink[0] | 1));
    const __m256i step = _mm256_set1_epi64x(2);
    const i64 steps = ceil_div(count, 4 * kChains);
    for (i64 i = 0; i < steps; ++i, x = _mm256_add_epi64(x, step))
        for (int k = 0; k < kChains; ++k) {
            const __m256i product = _mm256_mul_epu32(x, x);
            low[k] = _mm256_add_epi64(low[k], _mm256_mul_epu32(x, low[k]));
            cross[k] = _mm256_add_epi64(cross[k], product);
            cross[k] = _mm256_add_epi64(cross[k], _mm256_mul_epu32(cross[k], x));
        }
    alignas(32) u64 out[4];
    for (int k = 0; k < kChains; ++k) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_xor_si256(low[k], cross[k]));
        for (const u64 word : out) sink[0] ^= word;
    }
    return steps * 4 * kChains;
}

// Sums in variables of their own: compilers keep the array of a loop like this in memory.
template <int Chains>
struct LimbChains {
    __m256i sum = _mm256_set1_epi32(Chains);
    LimbChains<Chains - 1> others;

    inline void add(__m256i x) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, x));
        asm volatile("" : "+x"(sum), "+x"(x));  // a product of its own every time
        others.add(x);
    }
    __m256i total() const { return _mm256_xor_si256(sum, others.total()); }
};
template <>
struct LimbChains<0> {
    inline void add(__m256i) {}
    __m256i total() const { return _mm256_setzero_si256(); }
};

// Products of limbs as the convolution makes them: sixteen multiply-adds take six 16-bit multiplications and additions.
i64 multiply_add46(i64 count, u64* sink) {
    constexpr int kChains = 12;
    LimbChains<kChains> chains;
    const __m256i x = _mm256_set1_epi64x(static_cast<long long>(sink[0] | 1));
    const i64 steps = ceil_div(count * 6, 16 * kChains);
    for (i64 i = 0; i < steps; ++i) chains.add(x);
    alignas(32) u64 out[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(out), chains.total());
    for (const u64 word : out) sink[0] ^= word;
    return steps * 16 * kChains / 6;
}

i64 aes(i64 count, u64* sink) {
    constexpr int kChains = 8;
    const __m128i key = _mm_set1_epi64x(static_cast<long long>(sink[0]));
    __m128i s[kChains];
    for (int k = 0; k < kChains; ++k) s[k] = _mm_set1_epi64x(k);
    const i64 steps = ceil_div(count, kChains);
    for (i64 i = 0; i < steps; ++i)
        for (int r = 0; r < 10; ++r)
            for (int k = 0; k < kChains; ++k) s[k] = _mm_aesenc_si128(s[k], key);
    for (int k = 0; k < kChains; ++k) sink[0] ^= static_cast<u64>(_mm_cvtsi128_si64(s[k]));
    return steps * kChains;
}

}  // namespace

const Probes& probes_avx2() {
    static const Probes probes = {multiply_add46, multiply_add, multiply_add, aes};
    return probes;
}

}  // namespace autorep
#endif
