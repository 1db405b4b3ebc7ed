// Tensors that need not lie in memory as words: a key stream, or words packed without gaps. Kernels read them in blocks
// that stay in the L1 cache, instead of in a pass over memory each.
#pragma once
#include "aes.h"
#include "bits.h"

namespace autorep {

constexpr i64 kStreamBlock = 512;  // words of a block; a multiple of 64, so that blocks start on a byte when packed

constexpr i64 kPassBlock = 2048;   // of passes with few arrays, where what a call of a packing kernel costs would be felt

class WordStream {
public:
    static WordStream expanded(const u8 key[16], int bits) { return {aes_expand(key), nullptr, bits}; }
    static WordStream packed(const u8* data, int bits) { return {AesKey(), data, bits}; }

    // Words first .. first + count, `first` a multiple of kStreamBlock.
    void read(i64 first, i64 count, u64* out) const {
        if (packed_) {
            const u8 *from = packed_ + first / 8 * bits_, *next = from + count / 8 * bits_;
            for (const u8* line = next; line < next + (next - from); line += 64) __builtin_prefetch(line, 0, 2);  // the block after this one
            bit_ops().unpack(from, count, bits_, nullptr, out);
        } else aes_ops().ctr(key_, static_cast<u64>(first / 2), out, count, low_mask(bits_));
    }
    int bits() const { return bits_; }

private:
    WordStream(const AesKey& key, const u8* packed, int bits) : key_(key), packed_(packed), bits_(bits) {}
    AesKey key_;
    const u8* packed_;
    int bits_;
};

// body(first, count) on the blocks that cover 0..total, on up to thread_count() threads.
template <i64 Block = kStreamBlock, class Body>
void for_blocks(i64 total, Body&& body) {
    parallel_ranges(ceil_div(total, Block), (1 << 12) / Block, [&](i64 begin, i64 end) {
        for (i64 block = begin; block < end; ++block) {
            const i64 first = block * Block, left = total - first;
            body(first, left < Block ? left : Block);
        }
    });
}

// Writes the low bits of value - stream, packed, to where words `first` .. start in `out`. Overwrites `value`.
inline void pack_difference(const WordStream& stream, i64 first, i64 count, u64* value, u8* out) {
    u64 own[kStreamBlock];
    stream.read(first, count, own);
    for (i64 i = 0; i < count; ++i) value[i] -= own[i];
    bit_ops().pack(value, count, stream.bits(), out + first / 8 * stream.bits());
}

}  // namespace autorep
