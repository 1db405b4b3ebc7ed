// AES-128 with the processor's AES instructions, eight blocks in flight.
#include "aes.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

constexpr int kFlight = 8;

__m128i round_key(const AesKey& key, int r) { return _mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r])); }

// The last word is turned, substituted (all columns alike, so that shifting rows changes nothing) and added to the running sums.
AesKey expand(const u8 bytes[16]) {
    const __m128i last_turned = _mm_set1_epi32(0x0C0F0E0D);
    AesKey key;
    __m128i round = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    _mm_store_si128(reinterpret_cast<__m128i*>(key.round[0]), round);
    for (int r = 1, constant = 1; r <= 10; ++r, constant = (constant << 1) ^ (constant >> 7) * 0x11B) {
        const __m128i turned = _mm_aesenclast_si128(_mm_shuffle_epi8(round, last_turned), _mm_set1_epi32(constant));
        round = _mm_xor_si128(round, _mm_slli_si128(round, 4));
        round = _mm_xor_si128(_mm_xor_si128(round, _mm_slli_si128(round, 8)), turned);
        _mm_store_si128(reinterpret_cast<__m128i*>(key.round[r]), round);
    }
    return key;
}

template <int Count>
void encrypt(const AesKey& key, __m128i (&s)[Count]) {
    for (int k = 0; k < Count; ++k) s[k] = _mm_xor_si128(s[k], round_key(key, 0));
    for (int r = 1; r < 10; ++r) {
        const __m128i rk = round_key(key, r);
        for (int k = 0; k < Count; ++k) s[k] = _mm_aesenc_si128(s[k], rk);
    }
    for (int k = 0; k < Count; ++k) s[k] = _mm_aesenclast_si128(s[k], round_key(key, 10));
}

void ctr(const AesKey& key, u64 first, u64* out, i64 words, u64 mask) {
    const __m128i cut = _mm_set1_epi64x(static_cast<long long>(mask));
    for (i64 done = 0; done < words; done += 2 * kFlight, first += kFlight) {
        __m128i s[kFlight];
        for (int k = 0; k < kFlight; ++k)
            s[k] = _mm_set_epi64x(static_cast<long long>(__builtin_bswap64(first + static_cast<u64>(k))), 0);
        encrypt(key, s);
        alignas(16) u64 tail[2 * kFlight];
        const bool whole = words - done >= 2 * kFlight;
        auto* to = reinterpret_cast<__m128i*>(whole ? out + done : tail);
        for (int k = 0; k < kFlight; ++k) _mm_storeu_si128(to + k, _mm_and_si128(s[k], cut));
        if (!whole)
            for (i64 i = 0; i < words - done; ++i) out[done + i] = tail[i];
    }
}

void mmo(const AesKey& key, const Block* in, Block* out, i64 count) {
    for (i64 i = 0; i < count; i += kFlight) {
        const i64 n = count - i < kFlight ? count - i : kFlight;
        __m128i s[kFlight] = {}, kept[kFlight];
        for (int k = 0; k < kFlight; ++k) {
            if (k < n) s[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i + k));
            kept[k] = s[k];
        }
        encrypt(key, s);
        for (int k = 0; k < kFlight; ++k)
            if (k < n) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i + k), _mm_xor_si128(s[k], kept[k]));
    }
}

}  // namespace

const AesOps& aes_avx2() {
    static const AesOps ops = {expand, ctr, mmo};
    return ops;
}

}  // namespace autorep
#endif
