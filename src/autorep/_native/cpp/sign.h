// Short comparison keys: xor shares of the top bit of x - R modulo 2^(n+1), for a public x and a secret R.
//
// That bit is x_n ^ R_n ^ [x_low < R_low] (n low bits each). The comparison is a distributed comparison function (Boyle
// et al. 2021) whose value is one bit, and whose tree ends seven levels early: the bits of the last 128 leaves are one block.
//
// Key of one comparison, the same bytes for both parties:
//   depth = max(0, n-7) levels of [16 B seed correction; left control bit in bit 0, value correction in bit 1],
//   then ceil((depth+1)/8) B: right control bits, and in bit `depth` the correction of R_n,
//   then the leaf block's correction, 16 B.
//
// Seeds have 126 bits; bits 0 and 1 of a block are free. Bit 0 names the side before hashing: with H(x) = AES_k(x) ^ x
// under two public keys, the children of seed s are H_seed(s) on the left and H_seed(s | 1) on the right; in a child's
// block, bit 0 is its control bit and bit 1 its value. The leaf block is H_leaf(s). Bit 1 of a root masks R_n.
#pragma once
#include "aes.h"

namespace autorep {

constexpr int kLeafLevels = 7;

struct SignShape {
    int n, depth;
    i64 bits_at, leaf_at, key_bytes;  // places in a key, and its size
};
SignShape sign_shape(int n);

struct SignCipher {  // two public AES keys, other ones for every query
    AesKey seed, leaf;
};

// `count` keys from their roots; every array holds one row per key. Only the low n+1 bits of a threshold R count.
using SignGen = void(const SignShape&, const SignCipher&, i64 count, const u64* threshold, const u64* root0,
                     const u64* root1, u8* keys);
// Share of element i to bit i % 64 of planes[i / 64]; bits beyond `count` are zero.
using SignEval = void(const SignShape&, const SignCipher&, i64 count, int party, const u64* x, const u64* root,
                      const u8* keys, u64* planes);

SignGen sign_gen_avx2, sign_gen_vaes, sign_gen_avx512;
SignEval sign_eval_avx2, sign_eval_vaes, sign_eval_avx512;

}  // namespace autorep
