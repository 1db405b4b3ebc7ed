// AES blocks in registers, one in 128 bits or two in 256. Files that end in _avx2 and _vaes are compiled from the same
// source: where the compiler may use vector AES (__VAES__), an instruction does a round of two blocks.
#pragma once
#include "aes.h"

#if AUTOREP_X86
#include <immintrin.h>

#ifdef __VAES__
#define AUTOREP_AES_LEVEL(name) name##_vaes
#else
#define AUTOREP_AES_LEVEL(name) name##_avx2
#endif

namespace autorep {
namespace {

[[maybe_unused]] inline __m128i aes_round_key(const AesKey& key, int r) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r]));
}

// A register of blocks, as wide as an AES instruction takes.
#ifdef __VAES__
using AesBlocks = __m256i;
inline AesBlocks aes_all(__m128i block) { return _mm256_broadcastsi128_si256(block); }
inline AesBlocks aes_round(AesBlocks x, AesBlocks key) { return _mm256_aesenc_epi128(x, key); }
inline AesBlocks aes_last_round(AesBlocks x, AesBlocks key) { return _mm256_aesenclast_epi128(x, key); }
inline AesBlocks aes_xor(AesBlocks x, AesBlocks y) { return _mm256_xor_si256(x, y); }
inline AesBlocks aes_and(AesBlocks x, AesBlocks y) { return _mm256_and_si256(x, y); }
inline AesBlocks aes_add_words(AesBlocks x, AesBlocks y) { return _mm256_add_epi64(x, y); }
inline AesBlocks aes_order_bytes(AesBlocks x, AesBlocks order) { return _mm256_shuffle_epi8(x, order); }
inline AesBlocks aes_load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void aes_store(void* to, AesBlocks x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
#else
using AesBlocks = __m128i;
inline AesBlocks aes_all(__m128i block) { return block; }
inline AesBlocks aes_round(AesBlocks x, AesBlocks key) { return _mm_aesenc_si128(x, key); }
inline AesBlocks aes_last_round(AesBlocks x, AesBlocks key) { return _mm_aesenclast_si128(x, key); }
inline AesBlocks aes_xor(AesBlocks x, AesBlocks y) { return _mm_xor_si128(x, y); }
inline AesBlocks aes_and(AesBlocks x, AesBlocks y) { return _mm_and_si128(x, y); }
inline AesBlocks aes_add_words(AesBlocks x, AesBlocks y) { return _mm_add_epi64(x, y); }
inline AesBlocks aes_order_bytes(AesBlocks x, AesBlocks order) { return _mm_shuffle_epi8(x, order); }
inline AesBlocks aes_load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline void aes_store(void* to, AesBlocks x) { _mm_storeu_si128(static_cast<__m128i*>(to), x); }
#endif
inline AesBlocks aes_round_keys(const AesKey& key, int r) { return aes_all(aes_round_key(key, r)); }
constexpr int kAesWidth = sizeof(AesBlocks) / 16;

// Single blocks side by side in as few registers as hold them, and apart again.
template <int Count>
inline void aes_join(const __m128i (&blocks)[Count], AesBlocks (&joined)[Count / kAesWidth]) {
    static_assert(Count % kAesWidth == 0);
#pragma GCC unroll 8
    for (int k = 0; k < Count / kAesWidth; ++k)
#ifdef __VAES__
        joined[k] = _mm256_set_m128i(blocks[2 * k + 1], blocks[2 * k]);
#else
        joined[k] = blocks[k];
#endif
}

template <int Count>
inline void aes_part(const AesBlocks (&joined)[Count / kAesWidth], __m128i (&blocks)[Count]) {
#pragma GCC unroll 8
    for (int k = 0; k < Count / kAesWidth; ++k) {
#ifdef __VAES__
        blocks[2 * k] = _mm256_castsi256_si128(joined[k]);
        blocks[2 * k + 1] = _mm256_extracti128_si256(joined[k], 1);
#else
        blocks[k] = joined[k];
#endif
    }
}

// x becomes AES(key, x), or with Hash AES(key, x) ^ x, which the last round adds with its key.
template <bool Hash, int Count>
inline void aes_encrypt(const AesKey& key, AesBlocks (&x)[Count]) {
    AesBlocks in[Count];
    const AesBlocks first = aes_round_keys(key, 0), last = aes_round_keys(key, 10);
#pragma GCC unroll 8
    for (int k = 0; k < Count; ++k) {
        in[k] = Hash ? aes_xor(x[k], last) : last;
        x[k] = aes_xor(x[k], first);
    }
#pragma GCC unroll 9
    for (int r = 1; r < 10; ++r) {
        const AesBlocks now = aes_round_keys(key, r);
#pragma GCC unroll 8
        for (int k = 0; k < Count; ++k) x[k] = aes_round(x[k], now);
    }
#pragma GCC unroll 8
    for (int k = 0; k < Count; ++k) x[k] = aes_last_round(x[k], in[k]);
}

}  // namespace
}  // namespace autorep
#endif
