// AES-128 counter mode with vector AES: thirty-two blocks in flight.
#include "aes.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

constexpr int kVectors = 8;         // of four blocks each
constexpr i64 kWords = 8 * kVectors;

void ctr(const AesKey& key, u64 first, u64* out, i64 words, u64 mask) {
    __m512i keys[11];
    for (int r = 0; r <= 10; ++r)
        keys[r] = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r])));
    const __m512i cut = _mm512_set1_epi64(static_cast<long long>(mask));
    // The counter is kept as a little-endian number in the upper word and turned to big-endian for each block.
    const __m512i to_big_endian = _mm512_broadcast_i32x4(
        _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, -128, -128, -128, -128, -128, -128, -128, -128));
    const __m512i one = _mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0);
    const long long base = static_cast<long long>(first);
    __m512i counter = _mm512_set_epi64(base + 3, 0, base + 2, 0, base + 1, 0, base, 0);
    for (i64 done = 0; done < words; done += kWords) {
        __m512i s[kVectors];
        for (int k = 0; k < kVectors; ++k) {
            s[k] = _mm512_xor_si512(_mm512_shuffle_epi8(counter, to_big_endian), keys[0]);
            counter = _mm512_add_epi64(counter, one);
        }
        for (int r = 1; r < 10; ++r)
            for (int k = 0; k < kVectors; ++k) s[k] = _mm512_aesenc_epi128(s[k], keys[r]);
        for (int k = 0; k < kVectors; ++k) s[k] = _mm512_and_si512(_mm512_aesenclast_epi128(s[k], keys[10]), cut);
        if (words - done >= kWords) {
            for (int k = 0; k < kVectors; ++k) _mm512_storeu_si512(out + done + 8 * k, s[k]);
            continue;
        }
        for (int k = 0; k < kVectors; ++k) {
            const i64 left = words - done - 8 * k;
            const auto wanted = static_cast<__mmask8>(left >= 8 ? 0xFF : left <= 0 ? 0 : (1 << left) - 1);
            _mm512_mask_storeu_epi64(out + done + 8 * k, wanted, s[k]);
        }
    }
}

}  // namespace

const AesOps& aes_avx512() {
    static const AesOps ops = {aes_avx2().expand, ctr, aes_avx2().mmo};
    return ops;
}

}  // namespace autorep
#endif
