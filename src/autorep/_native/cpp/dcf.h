// Distributed comparison function (Boyle et al. 2021): shares of beta * [x < alpha], payload in one AES block.
//
// Payload group: Z_2^L x Z_2^L x Z_2^F with 2L + F <= 128. A block (b0, b1) gives the payload (b0, b1,
// (b0 >> L) + (b1 >> L << 64-L)), each modulo its ring; the map is linear in the accumulated words, so kernels
// add whole words and reduce once at the end.
//
// Key of one comparison, the same bytes for both parties:
//   n levels of [16 B seed correction, left control bit in bit 0][value correction, ceil((2L+F)/8) B],
//   then ceil(n/8) B of right control bits, then the leaf's value correction.
// Seeds have 127 bits: bit 0 of the first word is the control bit and stored as zero in a seed.
#pragma once
#include <cstring>

#include "aes.h"

namespace autorep {

struct DcfShape {
    int n, L, F;
    i64 value_bytes() const { return ceil_div(2 * L + F, 8); }
    i64 level_bytes() const { return 16 + value_bytes(); }
    i64 right_bits_at() const { return n * level_bytes(); }
    i64 last_at() const { return right_bits_at() + ceil_div(n, 8); }
    i64 key_bytes() const { return last_at() + value_bytes(); }
};

struct Block {
    u64 lo, hi;
};

struct Payload {
    u64 v[3];
};

inline u64 shift_right(u64 x, int by) { return by >= 64 ? 0 : x >> by; }
inline u64 shift_left(u64 x, int by) { return by >= 64 ? 0 : x << by; }

inline Payload payload_of(Block b, const DcfShape& shape) {
    return {{b.lo, b.hi, shift_right(b.lo, shape.L) + shift_left(shift_right(b.hi, shape.L), 64 - shape.L)}};
}

inline Payload reduce(Payload p, const DcfShape& shape) {
    return {{p.v[0] & low_mask(shape.L), p.v[1] & low_mask(shape.L), p.v[2] & low_mask(shape.F)}};
}

// v0 | v1 << L | v2 << 2L as a little-endian number of value_bytes() bytes.
inline void store_payload(Payload p, const DcfShape& shape, u8* out) {
    p = reduce(p, shape);
    const int L = shape.L;
    u64 words[2];
    words[0] = p.v[0] | shift_left(p.v[1], L);
    words[1] = shift_right(p.v[1], 64 - L);
    if (2 * L < 64) {
        words[0] |= shift_left(p.v[2], 2 * L);
        words[1] |= shift_right(p.v[2], 64 - 2 * L);
    } else {
        words[1] |= shift_left(p.v[2], 2 * L - 64);
    }
    std::memcpy(out, words, static_cast<size_t>(shape.value_bytes()));
}

inline Payload load_payload(const u8* in, const DcfShape& shape) {
    u64 words[2] = {0, 0};
    std::memcpy(words, in, static_cast<size_t>(shape.value_bytes()));
    const int L = shape.L;
    const u64 third = 2 * L < 64 ? shift_right(words[0], 2 * L) | shift_left(words[1], 64 - 2 * L)
                                 : shift_right(words[1], 2 * L - 64);
    return reduce({{words[0], shift_right(words[0], L) | shift_left(words[1], 64 - L), third}}, shape);
}

// The four fixed AES keys: left and right child seed, left and right value.
struct DcfCipher {
    AesKey seed[2], value[2];
};
const DcfCipher& dcf_cipher();

// `count` keys from their roots; every array holds one row per key.
using DcfGen = void (*)(const DcfShape&, i64 count, const u64* alpha, const u64* beta, const u64* root0,
                        const u64* root1, u8* keys);
using DcfEval = void (*)(const DcfShape&, i64 count, int party, const u64* x, const u64* root, const u8* keys, u64* out);

void dcf_gen_portable(const DcfShape&, i64, const u64*, const u64*, const u64*, const u64*, u8*);
void dcf_eval_portable(const DcfShape&, i64, int, const u64*, const u64*, const u8*, u64*);

}  // namespace autorep
