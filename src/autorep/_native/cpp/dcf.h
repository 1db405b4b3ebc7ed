// Distributed comparison function (Boyle et al. 2021): shares of beta * [x < alpha], payload in one AES block.
//
// Payload group: Z_2^L x Z_2^L x Z_2^F with 2L + F <= 128. A block (b0, b1) gives the payload (b0, b1,
// (b0 >> L) + (b1 >> L << 64-L)), each modulo its ring; the map is linear in the accumulated words, so kernels
// add whole words and reduce once at the end.
//
// Key of one comparison, the same bytes for both parties:
//   n levels of [16 B seed correction, left control bit in bit 0][value correction, ceil((2L+F)/8) B],
//   then ceil(n/8) B of right control bits, then the leaf's value correction.
//
// Seeds have 127 bits; bit 0 of a block is free. It names the side before hashing: with H(x) = AES_k(x) ^ x under two
// public keys, the children of seed s are H_seed(s) on the left and H_seed(s | 1) on the right, their values H_value(s)
// and H_value(s | 1); in a child's block, bit 0 is its control bit. The leaf's value is H_value(s).
#pragma once
#include "aes.h"

namespace autorep {

struct DcfShape {
    int n, L, F;
    i64 value_bytes, level_bytes, right_bits_at, last_at, key_bytes;  // sizes and places in a key
};
DcfShape dcf_shape(int n, int L, int F);

struct DcfCipher {  // two public AES keys, other ones for every query, so that no search serves two
    AesKey seed, value;
};

// `count` keys from their roots; every array holds one row per key.
using DcfGen = void(const DcfShape&, const DcfCipher&, i64 count, const u64* alpha, const u64* beta, const u64* root0,
                    const u64* root1, u8* keys);
using DcfEval = void(const DcfShape&, const DcfCipher&, i64 count, int party, const u64* x, const u64* root,
                     const u8* keys, u64* out);

// Fetches this level's part of the `count` keys that are evaluated next: each key is read in small steps, which the
// processor's own prefetching does not follow. Static: compiled for every instruction set.
[[maybe_unused]] static inline void prefetch_next(const DcfShape& shape, const u8* keys, i64 count, int level) {
    const i64 bytes = count * shape.key_bytes;
    for (i64 at = bytes * level / shape.n; at < bytes * (level + 1) / shape.n; at += 64) __builtin_prefetch(keys + at);
}

DcfGen dcf_gen_avx2, dcf_gen_vaes, dcf_gen_avx512;
DcfEval dcf_eval_avx2, dcf_eval_vaes, dcf_eval_avx512;

}  // namespace autorep
