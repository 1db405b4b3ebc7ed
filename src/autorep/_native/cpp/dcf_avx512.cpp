// DCF with vector AES: four keys a register, sixteen keys (evaluation) or four (generation) in flight.
//
// A register holds (lo, hi) of four keys. Control bits are whole-lane masks, so nothing branches on them.
#include "dcf.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

constexpr int kKeys = 4;    // keys of one register
constexpr int kGroups = 4;  // registers that evaluation walks together

struct WideKey {
    __m512i round[11];
};

WideKey widen(const AesKey& key) {
    WideKey wide;
    for (int r = 0; r <= 10; ++r)
        wide.round[r] = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r])));
    return wide;
}

// (lo, lo) and (hi, hi) of every key, and the two words exchanged.
__m512i low_twice(__m512i x) { return _mm512_unpacklo_epi64(x, x); }
__m512i high_twice(__m512i x) { return _mm512_unpackhi_epi64(x, x); }
__m512i swap_words(__m512i x) { return _mm512_shuffle_epi32(x, _MM_PERM_BADC); }
// Bit 0 of every key's low word spread over the whole lane.
__m512i spread(__m512i x) { return _mm512_srai_epi64(_mm512_slli_epi64(low_twice(x), 63), 63); }
__m512i all(u64 value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
__m512i pair(u64 lo, u64 hi) {
    const auto a = static_cast<long long>(lo), b = static_cast<long long>(hi);
    return _mm512_set_epi64(b, a, b, a, b, a, b, a);
}
__m512i twice(const u64* x) {  // x[key] in both words of each key
    const auto a = static_cast<long long>(x[0]), b = static_cast<long long>(x[1]);
    const auto c = static_cast<long long>(x[2]), d = static_cast<long long>(x[3]);
    return _mm512_set_epi64(d, d, c, c, b, b, a, a);
}
// a ^ (b & c)
__m512i xor_and(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi64(a, b, c, 0x78); }

__m512i load_rows(const u8* p, i64 stride) {  // 16 bytes of each of four keys
    const auto row = [&](int k) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + k * stride)); };
    __m512i x = _mm512_castsi128_si512(row(0));
    x = _mm512_inserti64x2(x, row(1), 1);
    x = _mm512_inserti64x2(x, row(2), 2);
    return _mm512_inserti64x2(x, row(3), 3);
}

void store_rows(u8* p, i64 stride, __m512i x, __mmask16 bytes, i64 count) {
    alignas(64) u64 words[8];
    _mm512_store_si512(words, x);
    for (i64 k = 0; k < count; ++k)
        _mm_mask_storeu_epi8(p + k * stride, bytes, _mm_load_si128(reinterpret_cast<const __m128i*>(words + 2 * k)));
}

enum class Fit { small, usual, whole };  // 2L < 64; otherwise; L = 64

// How a payload's three parts lie in a block and in the 2L+F bits of a correction.
template <Fit Words>
struct Layout {
    __m128i L;
    __m512i second_shift, third_shift;  // of a correction: to its second and third part, in the high word
    __m512i mask_words, mask_third;
    __m128i high_third;                 // block bits from the second word into the third part: 64 - L
    __m512i join_second_left, join_second_right, join_third_left, join_third_right;
    __mmask16 value_bytes;
    __m512i control, not_control;  // bit 0 of every key, and all others

    explicit Layout(const DcfShape& s) {
        const u64 length = static_cast<u64>(s.L), none = 64;
        L = _mm_cvtsi32_si128(s.L);
        second_shift = all(length);
        second_shift = _mm512_mask_blend_epi64(0xAA, _mm512_setzero_si512(), second_shift);
        third_shift = all(2 * length % 64);
        mask_words = all(low_mask(s.L));
        mask_third = all(low_mask(s.F));
        high_third = _mm_cvtsi32_si128(64 - s.L);
        join_second_left = pair(s.L == 64 ? none : length, s.L == 64 ? 0 : none);
        join_second_right = pair(none, 64 - length == 0 ? none : 64 - length);
        join_third_left = pair(2 * length < 64 ? 2 * length : none, 2 * length < 64 ? none : 2 * length - 64);
        join_third_right = pair(none, 2 * length < 64 && length > 0 ? 64 - 2 * length : none);
        value_bytes = static_cast<__mmask16>((1u << s.value_bytes) - 1);
        control = pair(1, 0);
        not_control = pair(~u64(1), ~u64(0));
    }

    // First and second part of a correction in the low and high word. With L = 64 they lie there already.
    __m512i words_of(__m512i correction) const {
        if constexpr (Words == Fit::whole) return correction;
        return _mm512_shrdv_epi64(low_twice(correction), correction, second_shift);
    }
    // Third part of a correction, in the high word: from there alone when the first two parts fill the low one.
    __m512i third_of(__m512i correction) const {
        if constexpr (Words == Fit::small) return _mm512_shrdv_epi64(low_twice(correction), correction, third_shift);
        return _mm512_srlv_epi64(correction, third_shift);
    }
    // Third part of an accumulated block >> L, in the low word.
    __m512i third_of_block(__m512i shifted) const {
        return _mm512_add_epi64(shifted, _mm512_sll_epi64(swap_words(shifted), high_third));
    }
    // The 2L+F bits of a correction from its words and its third part (in the low word).
    __m512i join(__m512i words, __m512i third) const {
        words = _mm512_and_si512(words, mask_words);
        const __m512i second = high_twice(words), last = low_twice(_mm512_and_si512(third, mask_third));
        __m512i out = _mm512_maskz_mov_epi64(0x55, words);
        out = _mm512_or_si512(out, _mm512_or_si512(_mm512_sllv_epi64(second, join_second_left),
                                                   _mm512_srlv_epi64(second, join_second_right)));
        return _mm512_or_si512(out, _mm512_or_si512(_mm512_sllv_epi64(last, join_third_left),
                                                    _mm512_srlv_epi64(last, join_third_right)));
    }
};

__m512i negate_if(__m512i negative, __m512i x) { return _mm512_sub_epi64(_mm512_xor_si512(x, negative), negative); }

struct WideCipher {
    WideKey seed, value;

    explicit WideCipher(const DcfCipher& cipher) : seed(widen(cipher.seed)), value(widen(cipher.value)) {}
};

// Hashes every block to a seed and a value.
template <int Blocks>
inline void hash(const WideCipher& cipher, const __m512i (&in)[Blocks], __m512i (&seed)[Blocks], __m512i (&value)[Blocks]) {
#pragma GCC unroll 4
    for (int g = 0; g < Blocks; ++g) {
        seed[g] = _mm512_xor_si512(in[g], cipher.seed.round[0]);
        value[g] = _mm512_xor_si512(in[g], cipher.value.round[0]);
    }
#pragma GCC unroll 9
    for (int r = 1; r < 10; ++r) {
#pragma GCC unroll 4
        for (int g = 0; g < Blocks; ++g) {
            seed[g] = _mm512_aesenc_epi128(seed[g], cipher.seed.round[r]);
            value[g] = _mm512_aesenc_epi128(value[g], cipher.value.round[r]);
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < Blocks; ++g) {  // the last round adds its key and, for the hash, the input
        seed[g] = _mm512_aesenclast_epi128(seed[g], _mm512_xor_si512(in[g], cipher.seed.round[10]));
        value[g] = _mm512_aesenclast_epi128(value[g], _mm512_xor_si512(in[g], cipher.value.round[10]));
    }
}

// Sixteen keys; may read up to 16 bytes beyond the last one.
template <Fit Words>
void eval_sixteen(const DcfShape& shape, const Layout<Words>& layout, const WideCipher& cipher, int party, const u64* x,
                  const u64* root, const u8* keys, u64* out) {
    const i64 stride = shape.key_bytes;
    __m512i seed[kGroups], control[kGroups], path[kGroups], right_bits[kGroups];
    __m512i words[kGroups], thirds[kGroups], corrected[kGroups];
    for (int g = 0; g < kGroups; ++g) {
        const u8* key = keys + g * kKeys * stride;
        seed[g] = _mm512_and_si512(_mm512_loadu_si512(root + 8 * g), layout.not_control);
        control[g] = all(party ? ~u64(0) : 0);
        path[g] = _mm512_sll_epi64(twice(x + kKeys * g), _mm_cvtsi32_si128(64 - shape.n));
        right_bits[g] = load_rows(key + shape.right_bits_at, stride);
        words[g] = thirds[g] = corrected[g] = _mm512_setzero_si512();
    }
    for (int level = 0; level < shape.n; ++level) {
        prefetch_next(shape, keys + kKeys * kGroups * stride, kKeys * kGroups, level);
        __mmask8 right[kGroups];
        __m512i child[kGroups], value[kGroups];
        for (int g = 0; g < kGroups; ++g) {
            right[g] = _mm512_movepi64_mask(path[g]);
            path[g] = _mm512_slli_epi64(path[g], 1);
            seed[g] = _mm512_mask_or_epi64(seed[g], right[g], seed[g], layout.control);
        }
        hash(cipher, seed, child, value);
        for (int g = 0; g < kGroups; ++g) {
            const u8* at = keys + g * kKeys * stride + level * shape.level_bytes;
            const __m512i stored = load_rows(at, stride);
            const __m512i correction = _mm512_and_si512(load_rows(at + 16, stride), control[g]);
            words[g] = _mm512_add_epi64(words[g], _mm512_add_epi64(value[g], layout.words_of(correction)));
            thirds[g] = _mm512_add_epi64(thirds[g], _mm512_srl_epi64(value[g], layout.L));
            corrected[g] = _mm512_add_epi64(corrected[g], layout.third_of(correction));
            const __m512i flips = _mm512_mask_blend_epi64(right[g], stored, right_bits[g]);
            right_bits[g] = _mm512_srli_epi64(right_bits[g], 1);
            seed[g] = _mm512_and_si512(xor_and(child[g], stored, control[g]), layout.not_control);
            control[g] = spread(xor_and(child[g], flips, control[g]));
        }
    }
    __m512i unused[kGroups], leaf[kGroups];
    hash(cipher, seed, unused, leaf);
    const __m512i negative = all(party ? ~u64(0) : 0);
    for (int g = 0; g < kGroups; ++g) {
        const __m512i last = _mm512_and_si512(load_rows(keys + g * kKeys * stride + shape.last_at, stride), control[g]);
        words[g] = _mm512_add_epi64(words[g], _mm512_add_epi64(leaf[g], layout.words_of(last)));
        thirds[g] = layout.third_of_block(_mm512_add_epi64(thirds[g], _mm512_srl_epi64(leaf[g], layout.L)));
        corrected[g] = _mm512_add_epi64(corrected[g], layout.third_of(last));
        const __m512i third = _mm512_add_epi64(thirds[g], swap_words(corrected[g]));
        alignas(64) u64 two[8], one[8];
        _mm512_store_si512(two, _mm512_and_si512(negate_if(negative, words[g]), layout.mask_words));
        _mm512_store_si512(one, _mm512_and_si512(negate_if(negative, third), layout.mask_third));
        for (int k = 0; k < kKeys; ++k) {
            u64* to = out + 3 * (kKeys * g + k);
            to[0] = two[2 * k];
            to[1] = two[2 * k + 1];
            to[2] = one[2 * k];
        }
    }
}

struct Walk {  // one party's state on the way towards alpha
    __m512i seed, control, child[2], value[2];
};

template <Fit Words>
void gen_four(const DcfShape& shape, const Layout<Words>& layout, const WideCipher& cipher, i64 count, const u64* alpha,
              const u64* beta_words, const u64* beta_third, const u64* root0, const u64* root1, u8* keys) {
    const i64 stride = shape.key_bytes;
    const __m512i one = layout.control;
    const __m512i beta = _mm512_loadu_si512(beta_words);
    const __m512i third_beta = _mm512_maskz_mov_epi64(0x55, twice(beta_third));
    __m512i path = _mm512_sll_epi64(twice(alpha), _mm_cvtsi32_si128(64 - shape.n));
    __m512i sum = _mm512_setzero_si512(), third_sum = sum, right_bits = sum;
    Walk walk[2];
    walk[0].seed = _mm512_and_si512(_mm512_loadu_si512(root0), layout.not_control);
    walk[1].seed = _mm512_and_si512(_mm512_loadu_si512(root1), layout.not_control);
    walk[0].control = _mm512_setzero_si512();
    walk[1].control = all(~u64(0));
    const auto hash_both = [&] {
        const __m512i in[4] = {walk[0].seed, _mm512_or_si512(walk[0].seed, one), walk[1].seed,
                               _mm512_or_si512(walk[1].seed, one)};
        __m512i child[4], value[4];
        hash(cipher, in, child, value);
        for (int k = 0; k < 4; ++k) {
            walk[k / 2].child[k % 2] = child[k];
            walk[k / 2].value[k % 2] = value[k];
        }
    };
    for (int level = 0; level < shape.n; ++level) {
        hash_both();
        const __mmask8 right = _mm512_movepi64_mask(path);
        path = _mm512_slli_epi64(path, 1);
        const auto kept = [&](const __m512i (&both)[2]) { return _mm512_mask_blend_epi64(right, both[0], both[1]); };
        const auto lost = [&](const __m512i (&both)[2]) { return _mm512_mask_blend_epi64(right, both[1], both[0]); };

        const __m512i bit = _mm512_maskz_mov_epi64(right, one);
        const auto differ = [&](int side) { return _mm512_xor_si512(walk[0].child[side], walk[1].child[side]); };
        const __m512i left_flip = _mm512_and_si512(_mm512_xor_si512(_mm512_xor_si512(differ(0), bit), one), one);
        const __m512i right_flip = _mm512_and_si512(_mm512_xor_si512(differ(1), bit), one);
        const __m512i seed_correction =
            _mm512_and_si512(_mm512_xor_si512(lost(walk[0].child), lost(walk[1].child)), layout.not_control);

        const __m512i negative = walk[1].control;
        const __m512i lost0 = lost(walk[0].value), lost1 = lost(walk[1].value);
        const __m512i kept0 = kept(walk[0].value), kept1 = kept(walk[1].value);
        const auto shifted = [&](__m512i block) { return _mm512_srl_epi64(block, layout.L); };
        const auto correct = [&](__m512i l1, __m512i l0, __m512i total, __m512i gained) {
            return negate_if(negative, _mm512_add_epi64(_mm512_sub_epi64(_mm512_sub_epi64(l1, l0), total),
                                                        _mm512_maskz_mov_epi64(right, gained)));
        };
        const __m512i words = correct(lost1, lost0, sum, beta);
        const __m512i third = correct(shifted(lost1), shifted(lost0), third_sum, third_beta);
        sum = _mm512_add_epi64(sum, _mm512_add_epi64(_mm512_sub_epi64(kept0, kept1), negate_if(negative, words)));
        third_sum = _mm512_add_epi64(third_sum, _mm512_add_epi64(_mm512_sub_epi64(shifted(kept0), shifted(kept1)),
                                                                 negate_if(negative, third)));
        const __m512i flips = _mm512_mask_blend_epi64(right, left_flip, right_flip);
        for (Walk& w : walk) {
            const __m512i child = kept(w.child);
            w.seed = _mm512_and_si512(xor_and(child, seed_correction, w.control), layout.not_control);
            w.control = spread(xor_and(child, flips, w.control));
        }
        right_bits = _mm512_or_si512(right_bits, _mm512_sll_epi64(right_flip, _mm_cvtsi32_si128(level)));
        u8* at = keys + level * shape.level_bytes;
        store_rows(at, stride, _mm512_or_si512(seed_correction, left_flip), 0xFFFF, count);
        store_rows(at + 16, stride, layout.join(words, layout.third_of_block(third)), layout.value_bytes, count);
    }
    hash_both();
    const auto leaf = [&](__m512i l1, __m512i l0, __m512i total) {
        return negate_if(walk[1].control, _mm512_sub_epi64(_mm512_sub_epi64(l1, l0), total));
    };
    const __m512i words = leaf(walk[1].value[0], walk[0].value[0], sum);
    const __m512i third = leaf(_mm512_srl_epi64(walk[1].value[0], layout.L), _mm512_srl_epi64(walk[0].value[0], layout.L),
                               third_sum);
    store_rows(keys + shape.right_bits_at, stride, right_bits, static_cast<__mmask16>((1u << ((shape.n + 7) / 8)) - 1), count);
    store_rows(keys + shape.last_at, stride, layout.join(words, layout.third_of_block(third)), layout.value_bytes, count);
}

void copy_words(u64* to, const u64* from, i64 count) {
    for (i64 i = 0; i < count; ++i) to[i] = from[i];
}

template <Fit Words>
void eval(const DcfShape& shape, const WideCipher& cipher, i64 count, int party, const u64* x, const u64* root,
          const u8* keys, u64* out) {
    constexpr i64 kStep = kKeys * kGroups, kMostKeyBytes = 64 * 32 + 8 + 16;
    const Layout<Words> layout(shape);
    i64 i = 0;
    for (; i + kStep < count; i += kStep)
        eval_sixteen(shape, layout, cipher, party, x + i, root + 2 * i, keys + i * shape.key_bytes, out + 3 * i);
    if (i == count) return;
    // The last keys go through a copy: to have sixteen, and so that nothing beyond the caller's array is read.
    u64 last_x[kStep] = {}, last_root[2 * kStep] = {}, last_out[3 * kStep];
    u8 last_keys[kStep * kMostKeyBytes + 16] = {};
    copy_words(last_x, x + i, count - i);
    copy_words(last_root, root + 2 * i, 2 * (count - i));
    __builtin_memcpy(last_keys, keys + i * shape.key_bytes, static_cast<size_t>((count - i) * shape.key_bytes));
    eval_sixteen(shape, layout, cipher, party, last_x, last_root, last_keys, last_out);
    copy_words(out + 3 * i, last_out, 3 * (count - i));
}

template <Fit Words>
void gen(const DcfShape& shape, const WideCipher& cipher, i64 count, const u64* alpha, const u64* beta,
         const u64* root0, const u64* root1, u8* keys) {
    const Layout<Words> layout(shape);
    for (i64 i = 0; i < count; i += kKeys) {
        const i64 n = count - i < kKeys ? count - i : kKeys;
        u64 alphas[kKeys] = {}, words[2 * kKeys] = {}, thirds[kKeys] = {}, roots[2][2 * kKeys] = {};
        copy_words(alphas, alpha + i, n);
        copy_words(roots[0], root0 + 2 * i, 2 * n);
        copy_words(roots[1], root1 + 2 * i, 2 * n);
        for (i64 k = 0; k < n; ++k) {
            copy_words(words + 2 * k, beta + 3 * (i + k), 2);
            thirds[k] = beta[3 * (i + k) + 2];
        }
        gen_four(shape, layout, cipher, n, alphas, words, thirds, roots[0], roots[1], keys + i * shape.key_bytes);
    }
}

}  // namespace

void dcf_eval_avx512(const DcfShape& shape, const DcfCipher& cipher, i64 count, int party, const u64* x,
                     const u64* root, const u8* keys, u64* out) {
    const auto run = shape.L == 64 ? eval<Fit::whole> : 2 * shape.L < 64 ? eval<Fit::small> : eval<Fit::usual>;
    run(shape, WideCipher(cipher), count, party, x, root, keys, out);
}

void dcf_gen_avx512(const DcfShape& shape, const DcfCipher& cipher, i64 count, const u64* alpha, const u64* beta,
                    const u64* root0, const u64* root1, u8* keys) {
    const auto run = shape.L == 64 ? gen<Fit::whole> : 2 * shape.L < 64 ? gen<Fit::small> : gen<Fit::usual>;
    run(shape, WideCipher(cipher), count, alpha, beta, root0, root1, keys);
}

}  // namespace autorep
#endif
