// Small AVX-512 helpers that several kernel files share.
#pragma once
#include <immintrin.h>

#include "common.h"

namespace autorep {
namespace {

// The first `count` of eight words, or of sixty-four bytes.
[[maybe_unused]] inline __mmask8 first_words(i64 count) {
    return static_cast<__mmask8>(count >= 8 ? 0xFF : count <= 0 ? 0 : (1 << count) - 1);
}
[[maybe_unused]] inline __mmask64 first_bytes(i64 count) {
    return count >= 64 ? ~u64(0) : (u64(1) << count) - 1;
}

// Eight vectors of eight words: word j of vector i becomes word i of vector j.
[[maybe_unused]] inline void transpose_words(__m512i (&x)[8]) {
    __m512i pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; ++k) {
            quads[i + k] = _mm512_shuffle_i64x2(pairs[i + k], pairs[i + k + 2], 0x88);
            quads[i + k + 2] = _mm512_shuffle_i64x2(pairs[i + k], pairs[i + k + 2], 0xDD);
        }
    for (int k = 0; k < 4; ++k) {
        x[k] = _mm512_shuffle_i64x2(quads[k], quads[k + 4], 0x88);
        x[k + 4] = _mm512_shuffle_i64x2(quads[k], quads[k + 4], 0xDD);
    }
}

}  // namespace
}  // namespace autorep
