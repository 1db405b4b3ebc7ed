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
// fixed keys, the children of seed s are H_seed(s) on the left and H_seed(s | 1) on the right, their values H_value(s)
// and H_value(s | 1); in a child's block, bit 0 is its control bit. The leaf's value is H_value(s).
#pragma once
#include "aes.h"

namespace autorep {

struct DcfShape {
    int n, L, F;
    i64 value_bytes, level_bytes, right_bits_at, last_at, key_bytes;  // sizes and places in a key
};
DcfShape dcf_shape(int n, int L, int F);

struct DcfCipher {  // the two fixed AES keys
    AesKey seed, value;
};
const DcfCipher& dcf_cipher();

// `count` keys from their roots; every array holds one row per key.
using DcfGen = void (*)(const DcfShape&, i64 count, const u64* alpha, const u64* beta, const u64* root0,
                        const u64* root1, u8* keys);
using DcfEval = void (*)(const DcfShape&, i64 count, int party, const u64* x, const u64* root, const u8* keys, u64* out);

void dcf_gen_avx512(const DcfShape&, i64, const u64*, const u64*, const u64*, const u64*, u8*);
void dcf_eval_avx512(const DcfShape&, i64, int, const u64*, const u64*, const u8*, u64*);

}  // namespace autorep
