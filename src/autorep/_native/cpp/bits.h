// Packing and bit planes, as one instruction set offers them.
#pragma once
#include "common.h"

namespace autorep {

struct BitOps {
    // The low `bits` bits of `count` words, without gaps, to ceil(count * bits / 8) bytes.
    void (*pack)(const u64* x, i64 count, int bits, u8* out);
    // The words back, plus own[i] modulo 2^bits where `own` is not null.
    void (*unpack)(const u8* in, i64 count, int bits, const u64* own, u64* out);
    // Up to 64 words to one word of each of k planes, `stride` words apart; and back.
    void (*to_planes)(const u64* x, i64 count, i64 k, u64* planes, i64 stride);
    void (*from_planes)(const u64* planes, i64 stride, i64 k, i64 count, u64* x);
};

const BitOps& bit_ops_portable();
const BitOps& bit_ops_avx2();
const BitOps& bit_ops_avx512();
const BitOps& bit_ops();  // of the active level

}  // namespace autorep
