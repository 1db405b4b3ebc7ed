// Short comparison keys with vector AES: four keys a register, eight registers in flight.
#include "sign.h"

#if AUTOREP_X86
#include <immintrin.h>

#include "sign_tree.h"

namespace autorep {
namespace {

struct Avx512Lanes {
    using Register = __m512i;
    static constexpr int kKeys = 4;

    struct WideKey {
        Register round[11];
        explicit WideKey(const AesKey& key) {
            for (int r = 0; r <= 10; ++r)
                round[r] = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r])));
        }
    };
    struct Cipher {
        WideKey seed, leaf;
        explicit Cipher(const SignCipher& cipher) : seed(cipher.seed), leaf(cipher.leaf) {}
    };

    static Register pair(u64 lo, u64 hi) {
        return _mm512_broadcast_i32x4(_mm_set_epi64x(static_cast<long long>(hi), static_cast<long long>(lo)));
    }
    static Register twice(const u64* x, int left) {
        const __m512i words = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0),
                                                       _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
        return _mm512_sll_epi64(words, _mm_cvtsi32_si128(left));
    }
    static Register load_words(const u64* from) { return _mm512_loadu_si512(from); }
    static void store_words(u64* to, Register x) { _mm512_storeu_si512(to, x); }
    static Register load_rows(const u8* from, i64 stride) {
        const auto row = [&](i64 k) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * stride)); };
        __m512i x = _mm512_castsi128_si512(row(0));
        x = _mm512_inserti32x4(x, row(1), 1);
        x = _mm512_inserti32x4(x, row(2), 2);
        return _mm512_inserti32x4(x, row(3), 3);
    }
    static void store_rows(u8* to, i64 stride, Register x) {
        const auto row = [&](i64 k) { return reinterpret_cast<__m128i*>(to + k * stride); };
        _mm_storeu_si128(row(0), _mm512_castsi512_si128(x));
        _mm_storeu_si128(row(1), _mm512_extracti32x4_epi32(x, 1));
        _mm_storeu_si128(row(2), _mm512_extracti32x4_epi32(x, 2));
        _mm_storeu_si128(row(3), _mm512_extracti32x4_epi32(x, 3));
    }

    static Register both(Register x, Register y) { return _mm512_and_si512(x, y); }
    static Register either(Register x, Register y) { return _mm512_or_si512(x, y); }
    static Register differ(Register x, Register y) { return _mm512_xor_si512(x, y); }
    static Register select(Register mask, Register if_set, Register otherwise) {
        return _mm512_ternarylogic_epi64(mask, if_set, otherwise, 0xCA);
    }
    static Register left_by_one(Register x) { return _mm512_slli_epi64(x, 1); }
    static Register right_by_one(Register x) { return _mm512_srli_epi64(x, 1); }
    static Register left_by(Register x, int by) { return _mm512_sll_epi64(x, _mm_cvtsi32_si128(by)); }
    // The top bit of each word over that word; a bit of the low word over the whole lane.
    static Register top(Register x) { return _mm512_srai_epi64(x, 63); }
    template <int Bit>
    static Register spread(Register x) {
        return _mm512_srai_epi64(_mm512_slli_epi64(_mm512_unpacklo_epi64(x, x), 63 - Bit), 63);
    }

    template <int Blocks>
    static inline void hash(const WideKey& key, const Register (&in)[Blocks], Register (&out)[Blocks]) {
#pragma GCC unroll 8
        for (int k = 0; k < Blocks; ++k) out[k] = _mm512_xor_si512(in[k], key.round[0]);
#pragma GCC unroll 9
        for (int r = 1; r < 10; ++r) {
#pragma GCC unroll 8
            for (int k = 0; k < Blocks; ++k) out[k] = _mm512_aesenc_epi128(out[k], key.round[r]);
        }
#pragma GCC unroll 8
        for (int k = 0; k < Blocks; ++k)
            out[k] = _mm512_aesenclast_epi128(out[k], _mm512_xor_si512(in[k], key.round[10]));
    }
};

}  // namespace

void sign_gen_avx512(const SignShape& shape, const SignCipher& cipher, i64 count, const u64* threshold, const u64* root0,
                     const u64* root1, u8* keys) {
    SignTree<Avx512Lanes>::gen<4>(shape, cipher, count, threshold, root0, root1, keys);
}

void sign_eval_avx512(const SignShape& shape, const SignCipher& cipher, i64 count, int party, const u64* x,
                      const u64* root, const u8* keys, u64* planes) {
    SignTree<Avx512Lanes>::eval<8>(shape, cipher, count, party, x, root, keys, planes);
}

}  // namespace autorep
#endif
