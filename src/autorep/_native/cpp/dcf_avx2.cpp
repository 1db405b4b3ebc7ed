// DCF with AES instructions: one key a register, eight keys in flight.
//
// A register holds (lo, hi) of a key's block. Control bits are whole-register masks, so nothing branches on them.
#include "dcf.h"

#if AUTOREP_X86
#include <immintrin.h>

#include "dcf_payload.h"

namespace autorep {
namespace {

constexpr int kTogether = 4;           // keys hashed together: eight AES blocks fill the pipeline
constexpr int kKeys = 2 * kTogether;   // two such groups take turns: one is hashed while the other is corrected

__m128i load(const u8* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m128i load(const u64* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m128i round_key(const AesKey& key, int r) { return _mm_load_si128(reinterpret_cast<const __m128i*>(key.round[r])); }
__m128i pair(u64 lo, u64 hi) { return _mm_set_epi64x(static_cast<long long>(hi), static_cast<long long>(lo)); }
__m128i count(int bits) { return _mm_cvtsi32_si128(bits); }
u64 low_word(__m128i x) { return static_cast<u64>(_mm_cvtsi128_si64(x)); }
u64 high_word(__m128i x) { return static_cast<u64>(_mm_extract_epi64(x, 1)); }
__m128i swap_words(__m128i x) { return _mm_shuffle_epi32(x, 0x4E); }
// Bit 0 of the block over the whole register.
__m128i spread(__m128i x) { return _mm_srai_epi32(_mm_shuffle_epi32(_mm_slli_epi32(x, 31), 0), 31); }
__m128i negate_if(__m128i negative, __m128i x) { return _mm_sub_epi64(_mm_xor_si128(x, negative), negative); }
__m128i select(__m128i mask, __m128i if_set, __m128i otherwise) { return _mm_blendv_epi8(otherwise, if_set, mask); }

// Hashes every block to a seed and a value.
template <int Blocks>
inline void hash(const DcfCipher& cipher, const __m128i (&in)[Blocks], __m128i (&seed)[Blocks], __m128i (&value)[Blocks]) {
    const __m128i first_seed = round_key(cipher.seed, 0), first_value = round_key(cipher.value, 0);
#pragma GCC unroll 4
    for (int k = 0; k < Blocks; ++k) {
        seed[k] = _mm_xor_si128(in[k], first_seed);
        value[k] = _mm_xor_si128(in[k], first_value);
    }
#pragma GCC unroll 9
    for (int r = 1; r < 10; ++r) {
        const __m128i seed_key = round_key(cipher.seed, r), value_key = round_key(cipher.value, r);
#pragma GCC unroll 4
        for (int k = 0; k < Blocks; ++k) {
            seed[k] = _mm_aesenc_si128(seed[k], seed_key);
            value[k] = _mm_aesenc_si128(value[k], value_key);
        }
    }
    const __m128i last_seed = round_key(cipher.seed, 10), last_value = round_key(cipher.value, 10);
#pragma GCC unroll 4
    for (int k = 0; k < Blocks; ++k) {  // the last round adds its key and, for the hash, the input
        seed[k] = _mm_aesenclast_si128(seed[k], _mm_xor_si128(in[k], last_seed));
        value[k] = _mm_aesenclast_si128(value[k], _mm_xor_si128(in[k], last_value));
    }
}

// Takes the three parts of a correction apart. Whole bytes are moved by one permutation, and a shift by less than eight
// bits does the rest, unless a part then needs a ninth byte (Straddles).
template <bool Straddles>
struct Layout {
    __m128i L, not_control;
    __m128i words_from, words_shift, third_from, third_shift;
    __m128i second_right, second_left, third_right, third_left, third_high_right;

    explicit Layout(const DcfShape& s) {
        alignas(16) u8 words[16], third[16];
        for (int j = 0; j < 8; ++j) {
            const int second = s.L / 8 + j, last = 2 * s.L / 8 + j;
            words[j] = static_cast<u8>(j);
            words[8 + j] = static_cast<u8>(second < 16 ? second : 0x80);
            third[j] = static_cast<u8>(last < 16 ? last : 0x80);
            third[8 + j] = 0x80;
        }
        const int twice = 2 * s.L, none = 64;
        L = count(s.L);
        not_control = pair(~u64(1), ~u64(0));
        words_from = load(words);
        words_shift = pair(0, static_cast<u64>(s.L % 8));
        third_from = load(third);
        third_shift = count(twice % 8);
        second_right = pair(0, static_cast<u64>(s.L));
        second_left = pair(64, static_cast<u64>(64 - s.L));
        third_right = count(twice < 64 ? twice : none);
        third_left = count(twice < 64 ? 64 - twice : none);
        third_high_right = count(twice < 64 ? none : twice - 64);
    }

    static bool straddles(const DcfShape& s) { return s.L % 8 + s.L > 64 || 2 * s.L % 8 + s.F > 64; }

    // First and second part in the low and high word.
    __m128i words_of(__m128i correction) const {
        if constexpr (!Straddles) return _mm_srlv_epi64(_mm_shuffle_epi8(correction, words_from), words_shift);
        const __m128i low = _mm_unpacklo_epi64(correction, correction);
        return _mm_or_si128(_mm_srlv_epi64(low, second_right), _mm_sllv_epi64(correction, second_left));
    }
    // Third part in the low word; the high word is zero.
    __m128i third_of(__m128i correction) const {
        if constexpr (!Straddles) return _mm_srl_epi64(_mm_shuffle_epi8(correction, third_from), third_shift);
        const __m128i high = swap_words(correction);
        return _mm_move_epi64(_mm_or_si128(_mm_or_si128(_mm_srl_epi64(correction, third_right), _mm_sll_epi64(high, third_left)),
                                           _mm_srl_epi64(high, third_high_right)));
    }
};

// The three parts of accumulated words and of accumulated (block >> L), whose low word also took the corrections.
Payload parts_of(__m128i words, __m128i thirds, const DcfShape& shape) {
    return {{low_word(words), high_word(words), low_word(thirds) + shift_left(high_word(thirds), 64 - shape.L)}};
}

struct Evaluation {  // of kTogether keys
    const u8* keys;
    __m128i seed[kTogether], control[kTogether], words[kTogether], thirds[kTogether];
    u64 path[kTogether], right_bits[kTogether];

    void start(const DcfShape& shape, int party, const u64* x, const u64* root, const u8* from) {
        keys = from;
        for (int k = 0; k < kTogether; ++k) {
            seed[k] = _mm_and_si128(load(root + 2 * k), pair(~u64(1), ~u64(0)));
            control[k] = _mm_set1_epi32(-party);
            path[k] = x[k] << (64 - shape.n);
            std::memcpy(&right_bits[k], keys + k * shape.key_bytes + shape.right_bits_at, 8);
            words[k] = thirds[k] = _mm_setzero_si128();
        }
    }

    template <bool Straddles>
    inline void add(const Layout<Straddles>& layout, int k, __m128i value, __m128i correction) {
        correction = _mm_and_si128(correction, control[k]);
        words[k] = _mm_add_epi64(words[k], _mm_add_epi64(value, layout.words_of(correction)));
        thirds[k] = _mm_add_epi64(thirds[k], _mm_add_epi64(_mm_srl_epi64(value, layout.L), layout.third_of(correction)));
    }

    template <bool Straddles>
    inline void step(const DcfShape& shape, const Layout<Straddles>& layout, const DcfCipher& cipher, int level) {
        __m128i in[kTogether], bit[kTogether], child[kTogether], value[kTogether];
        for (int k = 0; k < kTogether; ++k) {
            bit[k] = _mm_cvtsi64_si128(static_cast<long long>(path[k] >> 63));
            path[k] <<= 1;
            in[k] = _mm_or_si128(seed[k], bit[k]);
        }
        hash(cipher, in, child, value);
        for (int k = 0; k < kTogether; ++k) {
            const u8* at = keys + k * shape.key_bytes + level * shape.level_bytes;
            const __m128i stored = load(at);
            add(layout, k, value[k], load(at + 16));
            const __m128i right_bit = _mm_cvtsi64_si128(static_cast<long long>(right_bits[k]));
            right_bits[k] >>= 1;
            // Where the path goes right, bit 0 is the right control bit instead of the stored left one.
            const __m128i flips = _mm_xor_si128(stored, _mm_and_si128(_mm_xor_si128(stored, right_bit), bit[k]));
            const __m128i next = _mm_xor_si128(child[k], _mm_and_si128(flips, control[k]));
            seed[k] = _mm_and_si128(next, layout.not_control);
            control[k] = spread(next);
        }
    }

    template <bool Straddles>
    void finish(const DcfShape& shape, const Layout<Straddles>& layout, const DcfCipher& cipher, int party, u64* out) {
        __m128i unused[kTogether], leaf[kTogether];
        hash(cipher, seed, unused, leaf);
        const u64 negative = u64(0) - static_cast<u64>(party);
        for (int k = 0; k < kTogether; ++k) {
            add(layout, k, leaf[k], load(keys + k * shape.key_bytes + shape.last_at));
            Payload sum = parts_of(words[k], thirds[k], shape);
            for (u64& part : sum.v) part = (part ^ negative) - negative;
            sum = reduce(sum, shape);
            std::memcpy(out + 3 * k, sum.v, 24);
        }
    }
};

// Eight keys; may read up to 16 bytes beyond the last one.
template <bool Straddles>
void eval_eight(const DcfShape& shape, const Layout<Straddles>& layout, const DcfCipher& cipher, int party, const u64* x,
                const u64* root, const u8* keys, u64* out) {
    Evaluation first, second;
    first.start(shape, party, x, root, keys);
    second.start(shape, party, x + kTogether, root + 2 * kTogether, keys + kTogether * shape.key_bytes);
    for (int level = 0; level < shape.n; ++level) {
        prefetch_next(shape, keys + kKeys * shape.key_bytes, kKeys, level);
        first.step(shape, layout, cipher, level);
        second.step(shape, layout, cipher, level);
    }
    first.finish(shape, layout, cipher, party, out);
    second.finish(shape, layout, cipher, party, out + 3 * kTogether);
}

template <bool Straddles>
void eval(const DcfShape& shape, const DcfCipher& cipher, i64 count, int party, const u64* x, const u64* root,
          const u8* keys, u64* out) {
    constexpr i64 kMostKeyBytes = 64 * 32 + 8 + 16;
    const Layout<Straddles> layout(shape);
    i64 i = 0;
    for (; i + kKeys < count; i += kKeys)
        eval_eight(shape, layout, cipher, party, x + i, root + 2 * i, keys + i * shape.key_bytes, out + 3 * i);
    if (i == count) return;
    // The last keys go through a copy: to have eight, and so that nothing beyond the caller's array is read.
    const auto left = static_cast<size_t>(count - i);
    u64 last_x[kKeys] = {}, last_root[2 * kKeys] = {}, last_out[3 * kKeys];
    u8 last_keys[kKeys * kMostKeyBytes + 16] = {};
    std::memcpy(last_x, x + i, 8 * left);
    std::memcpy(last_root, root + 2 * i, 16 * left);
    std::memcpy(last_keys, keys + i * shape.key_bytes, left * static_cast<size_t>(shape.key_bytes));
    eval_eight(shape, layout, cipher, party, last_x, last_root, last_keys, last_out);
    std::memcpy(out + 3 * i, last_out, 24 * left);
}

struct Walk {  // one party's state on the way towards alpha
    __m128i seed, control, child[2], value[2];
};

struct Generation {  // of one key
    Walk walk[2];
    __m128i sum, third_sum;  // what the parties' values add up to so far, as words and as block >> L
    __m128i beta, third_beta;
    u64 path, right_bits;
    u8* key;

    void start(const DcfShape& shape, u64 alpha, const u64* payload, const u64* root0, const u64* root1, u8* to) {
        const __m128i not_control = pair(~u64(1), ~u64(0));
        walk[0].seed = _mm_and_si128(load(root0), not_control);
        walk[1].seed = _mm_and_si128(load(root1), not_control);
        walk[0].control = _mm_setzero_si128();
        walk[1].control = _mm_set1_epi32(-1);
        sum = third_sum = _mm_setzero_si128();
        beta = load(payload);
        third_beta = pair(payload[2], 0);
        path = alpha << (64 - shape.n);
        right_bits = 0;
        key = to;
    }

    inline void hash_children(const DcfCipher& cipher) {
        const __m128i one = pair(1, 0);
        const __m128i in[4] = {walk[0].seed, _mm_or_si128(walk[0].seed, one), walk[1].seed, _mm_or_si128(walk[1].seed, one)};
        __m128i child[4], value[4];
        hash(cipher, in, child, value);
        for (int k = 0; k < 4; ++k) {
            walk[k / 2].child[k % 2] = child[k];
            walk[k / 2].value[k % 2] = value[k];
        }
    }

    inline void step(const DcfShape& shape, const DcfCipher& cipher, int level) {
        hash_children(cipher);
        const __m128i one = pair(1, 0), L = count(shape.L);
        const u64 right_bit = path >> 63;
        path <<= 1;
        const __m128i right = _mm_set1_epi64x(static_cast<long long>(u64(0) - right_bit)), bit = _mm_and_si128(right, one);
        const auto kept = [&](const __m128i (&both)[2]) { return select(right, both[1], both[0]); };
        const auto lost = [&](const __m128i (&both)[2]) { return select(right, both[0], both[1]); };

        const auto differ = [&](int side) { return _mm_xor_si128(walk[0].child[side], walk[1].child[side]); };
        const __m128i left_flip = _mm_andnot_si128(_mm_xor_si128(differ(0), bit), one);
        const __m128i right_flip = _mm_and_si128(_mm_xor_si128(differ(1), bit), one);
        const __m128i seed_correction = _mm_andnot_si128(one, _mm_xor_si128(lost(walk[0].child), lost(walk[1].child)));

        const __m128i negative = walk[1].control;
        const __m128i lost0 = lost(walk[0].value), lost1 = lost(walk[1].value);
        const __m128i kept0 = kept(walk[0].value), kept1 = kept(walk[1].value);
        const auto shifted = [&](__m128i block) { return _mm_srl_epi64(block, L); };
        // Going right means that every left neighbour is smaller: the correction gains the payload.
        const auto correct = [&](__m128i l1, __m128i l0, __m128i total, __m128i gained) {
            return _mm_add_epi64(_mm_sub_epi64(_mm_sub_epi64(l1, l0), total), _mm_and_si128(gained, right));
        };
        const __m128i words = correct(lost1, lost0, sum, beta);
        const __m128i thirds = correct(shifted(lost1), shifted(lost0), third_sum, third_beta);
        sum = _mm_add_epi64(sum, _mm_add_epi64(_mm_sub_epi64(kept0, kept1), words));
        third_sum = _mm_add_epi64(third_sum, _mm_add_epi64(_mm_sub_epi64(shifted(kept0), shifted(kept1)), thirds));

        const __m128i flips = select(right, right_flip, left_flip);
        for (Walk& w : walk) {
            const __m128i next = _mm_xor_si128(kept(w.child), _mm_and_si128(_mm_or_si128(seed_correction, flips), w.control));
            w.seed = _mm_andnot_si128(one, next);
            w.control = spread(next);
        }
        right_bits |= low_word(right_flip) << level;
        u8* at = key + level * shape.level_bytes;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm_or_si128(seed_correction, left_flip));
        store_value(shape, at + 16, negate_if(negative, words), negate_if(negative, thirds), level + 1 < shape.n);
    }

    // A whole block where more of this key follows, which is written later.
    static inline void store_value(const DcfShape& shape, u8* to, __m128i words, __m128i thirds, bool more_follows) {
        const Payload correction = parts_of(words, thirds, shape);
        if (!more_follows) return store_payload(correction, shape, to);
        const Block joined = join_payload(correction, shape);
        std::memcpy(to, &joined, 16);
    }

    void finish(const DcfShape& shape, const DcfCipher& cipher) {
        hash_children(cipher);
        const __m128i L = count(shape.L);
        const auto leaf = [&](__m128i l1, __m128i l0, __m128i total) {
            return negate_if(walk[1].control, _mm_sub_epi64(_mm_sub_epi64(l1, l0), total));
        };
        const __m128i leaf0 = walk[0].value[0], leaf1 = walk[1].value[0];
        std::memcpy(key + shape.right_bits_at, &right_bits, static_cast<size_t>(ceil_div(shape.n, 8)));
        store_value(shape, key + shape.last_at, leaf(leaf1, leaf0, sum),
                    leaf(_mm_srl_epi64(leaf1, L), _mm_srl_epi64(leaf0, L), third_sum), false);
    }
};

}  // namespace

void dcf_eval_avx2(const DcfShape& shape, const DcfCipher& cipher, i64 count, int party, const u64* x, const u64* root,
                   const u8* keys, u64* out) {
    const auto run = Layout<true>::straddles(shape) ? eval<true> : eval<false>;
    run(shape, cipher, count, party, x, root, keys, out);
}

void dcf_gen_avx2(const DcfShape& shape, const DcfCipher& cipher, i64 count, const u64* alpha, const u64* beta,
                  const u64* root0, const u64* root1, u8* keys) {
    constexpr i64 kFlight = 4;  // keys that take turns, so that one is hashed while another is corrected
    for (i64 i = 0; i < count; i += kFlight) {
        const i64 here = count - i < kFlight ? count - i : kFlight;
        Generation made[kFlight];
        for (i64 k = 0; k < here; ++k)
            made[k].start(shape, alpha[i + k], beta + 3 * (i + k), root0 + 2 * (i + k), root1 + 2 * (i + k),
                          keys + (i + k) * shape.key_bytes);
        for (int level = 0; level < shape.n; ++level)
            for (i64 k = 0; k < here; ++k) made[k].step(shape, cipher, level);
        for (i64 k = 0; k < here; ++k) made[k].finish(shape, cipher);
    }
}

}  // namespace autorep
#endif
