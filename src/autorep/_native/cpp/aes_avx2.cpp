// AES-128 with the processor's AES instructions, eight blocks in flight.
#include "aes.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

constexpr int kFlight = 8;

__m128i round_key(const AesKey& key, int r) { return _mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r])); }

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
    static const AesOps ops = {ctr, mmo};
    return ops;
}

}  // namespace autorep
#endif
