// Short comparison keys with AES instructions: one key a register, eight blocks in flight.
#include "sign.h"

#if AUTOREP_X86
#include <immintrin.h>

#include "sign_tree.h"

namespace autorep {
namespace {

struct Avx2Lanes {
    using Register = __m128i;
    using Cipher = SignCipher;
    static constexpr int kKeys = 1;

    static Register pair(u64 lo, u64 hi) {
        return _mm_set_epi64x(static_cast<long long>(hi), static_cast<long long>(lo));
    }
    static Register twice(const u64* x, int left) { return pair(x[0] << left, x[0] << left); }
    static Register load_words(const u64* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
    static void store_words(u64* to, Register x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
    static Register load_rows(const u8* from, i64) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
    static void store_rows(u8* to, i64, Register x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }

    static Register both(Register x, Register y) { return _mm_and_si128(x, y); }
    static Register either(Register x, Register y) { return _mm_or_si128(x, y); }
    static Register differ(Register x, Register y) { return _mm_xor_si128(x, y); }
    static Register select(Register mask, Register if_set, Register otherwise) {
        return _mm_blendv_epi8(otherwise, if_set, mask);
    }
    static Register left_by_one(Register x) { return _mm_slli_epi64(x, 1); }
    static Register right_by_one(Register x) { return _mm_srli_epi64(x, 1); }
    static Register left_by(Register x, int by) { return _mm_sll_epi64(x, _mm_cvtsi32_si128(by)); }
    // The top bit of each word over that word; a bit of the low word over the whole lane.
    static Register top(Register x) { return _mm_srai_epi32(_mm_shuffle_epi32(x, 0xF5), 31); }
    template <int Bit>
    static Register spread(Register x) {
        return _mm_srai_epi32(_mm_shuffle_epi32(_mm_slli_epi32(x, 31 - Bit), 0), 31);
    }

    template <int Blocks>
    static inline void hash(const AesKey& key, const Register (&in)[Blocks], Register (&out)[Blocks]) {
        const auto round = [&](int r) { return _mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r])); };
#pragma GCC unroll 8
        for (int k = 0; k < Blocks; ++k) out[k] = _mm_xor_si128(in[k], round(0));
#pragma GCC unroll 9
        for (int r = 1; r < 10; ++r) {
            const Register now = round(r);
#pragma GCC unroll 8
            for (int k = 0; k < Blocks; ++k) out[k] = _mm_aesenc_si128(out[k], now);
        }
        const Register now = round(10);
#pragma GCC unroll 8
        for (int k = 0; k < Blocks; ++k) out[k] = _mm_aesenclast_si128(out[k], _mm_xor_si128(in[k], now));
    }
};

}  // namespace

void sign_gen_avx2(const SignShape& shape, const SignCipher& cipher, i64 count, const u64* threshold, const u64* root0,
                   const u64* root1, u8* keys) {
    SignTree<Avx2Lanes>::gen<4>(shape, cipher, count, threshold, root0, root1, keys);
}

void sign_eval_avx2(const SignShape& shape, const SignCipher& cipher, i64 count, int party, const u64* x,
                    const u64* root, const u8* keys, u64* planes) {
    SignTree<Avx2Lanes>::eval<8>(shape, cipher, count, party, x, root, keys, planes);
}

}  // namespace autorep
#endif
