// Correlated oblivious transfers from small ones (SoftSpoken, k = 4): streams, bit transpose, hash.
//
// 128 columns in 32 blocks of four. The receiver holds all sixteen keys of a block, the sender all but one, number
// delta. With r_x the stream of key x and c the receiver's choices:
//   receiver: V_i = XOR of the r_x whose x has bit i; sends U = c ^ XOR of all r_x
//   sender:   its keys are ordered by y = x ^ delta (y = 0 is the one it lacks): W_i = XOR of the r whose y has bit i,
//             then W_i ^= U where delta has bit i
// so that row by row W = V ^ c * Delta. Rows are hashed: H(n, x) = pi(pi(x) ^ n) ^ pi(x), pi a fixed-key AES.
#pragma once
#include <vector>

#include "aes.h"

namespace autorep {

constexpr i64 kOtBlocks = 32, kOtKeys = 16, kOtColumns = 128;

class OtStreams {
public:
    explicit OtStreams(const u8* keys);  // (32, 16, 16 bytes)

    // Row `first` to `first + 64 * words`; both multiples of 128. pads is (rows, depth, 2 words): H with tweak
    // (number of the row, 0 .. depth - 1).
    void receive(u64 first, i64 words, const u64* choices, u64* u, i64 depth, u64* pads) const;
    void send(u64 first, i64 words, const u64* u, const u64 delta[2], i64 depth, u64* pads0, u64* pads1) const;

private:
    struct Columns;
    void fold(u64 block, i64 words, i64 key_from, Columns& columns, i64 j) const;
    std::vector<AesKey> keys_;
};

}  // namespace autorep
