// Packing and bit planes in plain C++.
#include <cstring>

#include "bits.h"

namespace autorep {
namespace {

// 64 words of `bits` bits fill exactly `bits` 64-bit words, so every group of 64 starts on a byte boundary.
void pack_group(const u64* x, i64 count, int bits, u8* out) {
    const u64 mask = low_mask(bits);
    u64 words[65] = {};
    int position = 0;
    for (i64 i = 0; i < count; ++i, position += bits) {
        const u64 value = x[i] & mask;
        const int word = position >> 6, shift = position & 63;
        words[word] |= value << shift;
        if (shift + bits > 64) words[word + 1] |= value >> (64 - shift);
    }
    std::memcpy(out, words, static_cast<size_t>(ceil_div(count * bits, 8)));
}

void unpack_group(const u8* in, i64 count, int bits, const u64* own, u64* out) {
    const u64 mask = low_mask(bits);
    u64 words[65] = {};
    std::memcpy(words, in, static_cast<size_t>(ceil_div(count * bits, 8)));
    int position = 0;
    for (i64 i = 0; i < count; ++i, position += bits) {
        const int word = position >> 6, shift = position & 63;
        u64 value = words[word] >> shift;
        if (shift + bits > 64) value |= words[word + 1] << (64 - shift);
        out[i] = (own ? value + own[i] : value) & mask;
    }
}

void pack(const u64* x, i64 count, int bits, u8* out) {
    if (bits == 64) {
        std::memcpy(out, x, static_cast<size_t>(8 * count));
        return;
    }
    for (i64 i = 0; i < count; i += 64) pack_group(x + i, count - i < 64 ? count - i : 64, bits, out + i / 8 * bits);
}

void unpack(const u8* in, i64 count, int bits, const u64* own, u64* out) {
    if (bits == 64) {
        std::memcpy(out, in, static_cast<size_t>(8 * count));
        for (i64 i = 0; own && i < count; ++i) out[i] += own[i];
        return;
    }
    for (i64 i = 0; i < count; i += 64)
        unpack_group(in + i / 8 * bits, count - i < 64 ? count - i : 64, bits, own ? own + i : nullptr, out + i);
}

// In place: bit j of row i becomes bit i of row j.
void transpose64(u64 (&rows)[64]) {
    u64 mask = 0x00000000FFFFFFFFull;
    for (int width = 32; width != 0; width >>= 1, mask ^= mask << width)
        for (int row = 0; row < 64; row = ((row | width) + 1) & ~width) {
            const u64 swap = ((rows[row] >> width) ^ rows[row | width]) & mask;
            rows[row | width] ^= swap;
            rows[row] ^= swap << width;
        }
}

void to_planes(const u64* x, i64 count, i64 k, u64* planes, i64 stride) {
    u64 rows[64] = {};
    std::memcpy(rows, x, static_cast<size_t>(8 * count));
    transpose64(rows);
    for (i64 j = 0; j < k; ++j) planes[j * stride] = rows[j];
}

void from_planes(const u64* planes, i64 stride, i64 k, i64 count, u64* x) {
    u64 rows[64] = {};
    for (i64 j = 0; j < k; ++j) rows[j] = planes[j * stride];
    transpose64(rows);
    std::memcpy(x, rows, static_cast<size_t>(8 * count));
}

}  // namespace

const BitOps& bit_ops_portable() {
    static const BitOps ops = {pack, unpack, to_planes, from_planes};
    return ops;
}

}  // namespace autorep
