// The tree of short comparison keys, written once for every instruction set.
//
// `Lanes` says how: a Register holds the 128-bit blocks of kKeys keys, and has the few operations used here. Everything is
// static: files built for different instruction sets must never share one compiled copy. Control bits are whole-lane
// masks, so nothing branches on them.
#pragma once
#include <cstring>

#include "sign.h"

namespace autorep {
namespace {

template <class Lanes>
struct SignTree {
    using Register = typename Lanes::Register;
    static constexpr int kKeys = Lanes::kKeys;
    static constexpr i64 kMostKeyBytes = 16 * (63 - kLeafLevels) + 8 + 16;

    static Register only(u64 low) { return Lanes::pair(low, 0); }

    // Evaluates kKeys * Groups keys.
    template <int Groups>
    static void eval_some(const SignShape& shape, const typename Lanes::Cipher& cipher, int party, const u64* x,
                          const u64* root, const u8* keys, u8* share) {
        const i64 stride = shape.key_bytes;
        const Register one = only(1), seed_bits = Lanes::pair(~u64(3), ~u64(0));
        Register seed[Groups], control[Groups], value[Groups], path[Groups], bits[Groups];
        for (int g = 0; g < Groups; ++g) {
            const Register start = Lanes::load_words(root + 2 * kKeys * g);
            seed[g] = Lanes::both(start, seed_bits);
            value[g] = start;
            control[g] = Lanes::pair(u64(0) - static_cast<u64>(party), u64(0) - static_cast<u64>(party));
            path[g] = Lanes::twice(x + kKeys * g, 64 - shape.n);
            bits[g] = Lanes::load_rows(keys + kKeys * g * stride + shape.bits_at, stride);
        }
        for (int level = 0; level < shape.depth; ++level) {
            prefetch(shape, keys + kKeys * Groups * stride, kKeys * Groups, level);
            Register side[Groups], in[Groups], child[Groups];
            for (int g = 0; g < Groups; ++g) {
                side[g] = Lanes::both(Lanes::top(path[g]), one);
                path[g] = Lanes::left_by_one(path[g]);
                in[g] = Lanes::either(seed[g], side[g]);
            }
            Lanes::template hash<Groups>(cipher.seed, in, child);
            for (int g = 0; g < Groups; ++g) {
                const Register stored = Lanes::load_rows(keys + kKeys * g * stride + 16 * level, stride);
                // Where the path goes right, bit 0 is the right control bit instead of the stored left one.
                const Register flips = Lanes::differ(stored, Lanes::both(Lanes::differ(stored, bits[g]), side[g]));
                const Register next = Lanes::differ(child[g], Lanes::both(flips, control[g]));
                bits[g] = Lanes::right_by_one(bits[g]);
                value[g] = Lanes::differ(value[g], next);
                control[g] = Lanes::template spread<0>(next);
                seed[g] = Lanes::both(next, seed_bits);
            }
        }
        Register leaf[Groups];
        Lanes::template hash<Groups>(cipher.leaf, seed, leaf);
        const u64 last = low_mask(shape.n < kLeafLevels ? shape.n : kLeafLevels);
        for (int g = 0; g < Groups; ++g) {
            const Register stored = Lanes::load_rows(keys + kKeys * g * stride + shape.leaf_at, stride);
            alignas(64) u64 block[2 * kKeys], values[2 * kKeys], rest[2 * kKeys];
            Lanes::store_words(block, Lanes::differ(leaf[g], Lanes::both(stored, control[g])));
            Lanes::store_words(values, value[g]);
            Lanes::store_words(rest, bits[g]);
            for (int k = 0; k < kKeys; ++k) {
                const u64 at = x[kKeys * g + k], place = at & last;
                const u64 own = party ? rest[2 * k] : at >> shape.n;  // P1 adds the correction of R_n, P0 the public x_n
                const u64 bit = (block[2 * k + (place >> 6)] >> (place & 63)) ^ (values[2 * k] >> 1) ^ own;
                share[kKeys * g + k] = static_cast<u8>(bit & 1);
            }
        }
    }

    // Makes kKeys * Groups keys.
    template <int Groups>
    static void gen_some(const SignShape& shape, const typename Lanes::Cipher& cipher, const u64* threshold,
                         const u64* root0, const u64* root1, u8* keys) {
        const i64 stride = shape.key_bytes;
        const Register one = only(1), two = only(2), seed_bits = Lanes::pair(~u64(3), ~u64(0));
        Register seed[2 * Groups], control[2 * Groups];  // party 0's, then party 1's
        Register value[Groups], path[Groups], bits[Groups];
        for (int g = 0; g < Groups; ++g) {
            seed[g] = Lanes::both(Lanes::load_words(root0 + 2 * kKeys * g), seed_bits);
            seed[Groups + g] = Lanes::both(Lanes::load_words(root1 + 2 * kKeys * g), seed_bits);
            control[g] = only(0);
            control[Groups + g] = Lanes::pair(~u64(0), ~u64(0));
            value[g] = bits[g] = only(0);
            path[g] = Lanes::twice(threshold + kKeys * g, 64 - shape.n);
        }
        for (int level = 0; level < shape.depth; ++level) {
            Register sided[2 * Groups], left[2 * Groups], right[2 * Groups];
            for (int i = 0; i < 2 * Groups; ++i) sided[i] = Lanes::either(seed[i], one);
            Lanes::template hash<2 * Groups>(cipher.seed, seed, left);
            Lanes::template hash<2 * Groups>(cipher.seed, sided, right);
            for (int g = 0; g < Groups; ++g) {
                const Register goes_right = Lanes::top(path[g]), bit = Lanes::both(goes_right, one);
                path[g] = Lanes::left_by_one(path[g]);
                const Register lefts = Lanes::differ(left[g], left[Groups + g]);
                const Register rights = Lanes::differ(right[g], right[Groups + g]);
                const Register left_flip = Lanes::both(Lanes::differ(Lanes::differ(lefts, bit), one), one);
                const Register right_flip = Lanes::both(Lanes::differ(rights, bit), one);
                const Register lost = Lanes::select(goes_right, lefts, rights);
                // Going right means that every left neighbour is smaller: the values there must differ.
                const Register value_flip =
                    Lanes::both(Lanes::differ(Lanes::differ(lost, value[g]), Lanes::both(goes_right, two)), two);
                const Register corrected = Lanes::either(Lanes::both(lost, seed_bits), value_flip);
                const Register flips = Lanes::either(corrected, Lanes::select(goes_right, right_flip, left_flip));
                value[g] = Lanes::differ(Lanes::differ(value[g], Lanes::select(goes_right, rights, lefts)), value_flip);
                for (int i = g; i < 2 * Groups; i += Groups) {
                    const Register child = Lanes::select(goes_right, right[i], left[i]);
                    const Register next = Lanes::differ(child, Lanes::both(flips, control[i]));
                    control[i] = Lanes::template spread<0>(next);
                    seed[i] = Lanes::both(next, seed_bits);
                }
                bits[g] = Lanes::either(bits[g], Lanes::left_by(right_flip, level));
                Lanes::store_rows(keys + kKeys * g * stride + 16 * level, stride, Lanes::either(corrected, left_flip));
            }
        }
        Register leaf[2 * Groups];
        Lanes::template hash<2 * Groups>(cipher.leaf, seed, leaf);
        const u64 last = low_mask(shape.n < kLeafLevels ? shape.n : kLeafLevels);
        for (int g = 0; g < Groups; ++g) {
            alignas(64) u64 below[2 * kKeys], rest[2 * kKeys];
            Lanes::store_words(rest, bits[g]);
            for (int k = 0; k < kKeys; ++k) {
                const u64 r = threshold[kKeys * g + k], first = (r & last) & 63, high = u64(0) - ((r & last) >> 6);
                const u64 ones = (u64(1) << first) - 1;
                below[2 * k] = ones | high;  // bit j says whether leaf j is below R's
                below[2 * k + 1] = ones & high;
                const i64 at = kKeys * g + k;
                const u64 top = (r >> shape.n) ^ (root0[2 * at] >> 1) ^ (root1[2 * at] >> 1);
                rest[2 * k] |= (top & 1) << shape.depth;
                std::memcpy(keys + at * stride + shape.bits_at, &rest[2 * k],
                            static_cast<size_t>(shape.leaf_at - shape.bits_at));
            }
            const Register pattern = Lanes::differ(Lanes::load_words(below), Lanes::template spread<1>(value[g]));
            Lanes::store_rows(keys + kKeys * g * stride + shape.leaf_at, stride,
                              Lanes::differ(pattern, Lanes::differ(leaf[g], leaf[Groups + g])));
        }
    }

    template <int Groups>
    static void eval(const SignShape& shape, const SignCipher& keyed, i64 count, int party, const u64* x, const u64* root,
                     const u8* keys, u64* planes) {
        constexpr i64 kStep = kKeys * Groups;
        static_assert(64 % kStep == 0, "a word of the result holds whole steps");
        const typename Lanes::Cipher cipher(keyed);
        for (i64 first = 0; first < count; first += 64) {
            u8 share[64] = {};
            const i64 end = count - first < 64 ? count : first + 64;
            for (i64 i = first; i < end; i += kStep) {
                const i64 left = end - i;
                if (left >= kStep) {
                    eval_some<Groups>(shape, cipher, party, x + i, root + 2 * i, keys + i * shape.key_bytes,
                                      share + (i - first));
                    continue;
                }
                // The last keys go through a copy, to have a whole step of them.
                u64 last_x[kStep] = {}, last_root[2 * kStep] = {};
                u8 last_keys[kStep * kMostKeyBytes] = {}, last_share[kStep];
                std::memcpy(last_x, x + i, 8 * static_cast<size_t>(left));
                std::memcpy(last_root, root + 2 * i, 16 * static_cast<size_t>(left));
                std::memcpy(last_keys, keys + i * shape.key_bytes, static_cast<size_t>(left * shape.key_bytes));
                eval_some<Groups>(shape, cipher, party, last_x, last_root, last_keys, last_share);
                std::memcpy(share + (i - first), last_share, static_cast<size_t>(left));
            }
            u64 word = 0;
            for (int bit = 0; bit < 64; ++bit) word |= static_cast<u64>(share[bit]) << bit;
            planes[first / 64] = word;
        }
    }

    template <int Groups>
    static void gen(const SignShape& shape, const SignCipher& keyed, i64 count, const u64* threshold, const u64* root0,
                    const u64* root1, u8* keys) {
        constexpr i64 kStep = kKeys * Groups;
        const typename Lanes::Cipher cipher(keyed);
        for (i64 i = 0; i < count; i += kStep) {
            const i64 left = count - i;
            if (left >= kStep) {
                gen_some<Groups>(shape, cipher, threshold + i, root0 + 2 * i, root1 + 2 * i, keys + i * shape.key_bytes);
                continue;
            }
            u64 last_threshold[kStep] = {}, last_root0[2 * kStep] = {}, last_root1[2 * kStep] = {};
            u8 last_keys[kStep * kMostKeyBytes];
            std::memcpy(last_threshold, threshold + i, 8 * static_cast<size_t>(left));
            std::memcpy(last_root0, root0 + 2 * i, 16 * static_cast<size_t>(left));
            std::memcpy(last_root1, root1 + 2 * i, 16 * static_cast<size_t>(left));
            gen_some<Groups>(shape, cipher, last_threshold, last_root0, last_root1, last_keys);
            std::memcpy(keys + i * shape.key_bytes, last_keys, static_cast<size_t>(left * shape.key_bytes));
        }
    }

private:
    // Fetches this level's part of the keys that are evaluated next.
    static void prefetch(const SignShape& shape, const u8* keys, i64 count, int level) {
        const i64 bytes = count * shape.key_bytes;
        for (i64 at = bytes * level / shape.depth; at < bytes * (level + 1) / shape.depth; at += 64)
            __builtin_prefetch(keys + at);
    }
};

}  // namespace
}  // namespace autorep
