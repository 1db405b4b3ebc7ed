// Words of 1..64 bits packed without gaps, bit planes, and the bit-sliced AND of two shared bits.
#include <cstring>

#include "bindings.h"

namespace autorep {
namespace {

// 64 words of `bits` bits fill exactly `bits` 64-bit words, so every group of 64 starts on a byte boundary.
void pack_group(const u64* x, i64 count, int bits, u8* out, i64 out_bytes) {
    const u64 mask = low_mask(bits);
    u64 words[65] = {};
    int position = 0;
    for (i64 i = 0; i < count; ++i, position += bits) {
        const u64 value = x[i] & mask;
        const int word = position >> 6, shift = position & 63;
        words[word] |= value << shift;
        if (shift + bits > 64) words[word + 1] |= value >> (64 - shift);
    }
    std::memcpy(out, words, static_cast<size_t>(out_bytes));
}

template <class Store>
void unpack_group(const u8* in, i64 in_bytes, i64 count, int bits, Store&& store) {
    const u64 mask = low_mask(bits);
    u64 words[65] = {};
    std::memcpy(words, in, static_cast<size_t>(in_bytes));
    int position = 0;
    for (i64 i = 0; i < count; ++i, position += bits) {
        const int word = position >> 6, shift = position & 63;
        u64 value = words[word] >> shift;
        if (shift + bits > 64) value |= words[word + 1] << (64 - shift);
        store(i, value & mask);
    }
}

template <class Body>
void for_groups(i64 count, int bits, Body&& body) {
    parallel_ranges(ceil_div(count, 64), 1024, [&](i64 begin, i64 end) {
        for (i64 group = begin; group < end; ++group) {
            const i64 n = count - 64 * group < 64 ? count - 64 * group : 64;
            body(64 * group, n, group * 8 * bits, ceil_div(n * bits, 8));
        }
    });
}

void pack(Words x, int bits, BytesOut out) {
    for_groups(static_cast<i64>(x.size()), bits, [&](i64 start, i64 n, i64 byte, i64 bytes) {
        pack_group(x.data() + start, n, bits, out.data() + byte, bytes);
    });
}

void unpack(Bytes in, int bits, WordsOut out) {
    for_groups(static_cast<i64>(out.size()), bits, [&](i64 start, i64 n, i64 byte, i64 bytes) {
        u64* to = out.data() + start;
        unpack_group(in.data() + byte, bytes, n, bits, [&](i64 i, u64 value) { to[i] = value; });
    });
}

void open_packed(Words own, Bytes peer, int bits, WordsOut out) {
    const u64 mask = low_mask(bits);
    for_groups(static_cast<i64>(out.size()), bits, [&](i64 start, i64 n, i64 byte, i64 bytes) {
        const u64* mine = own.data() + start;
        u64* to = out.data() + start;
        unpack_group(peer.data() + byte, bytes, n, bits, [&](i64 i, u64 value) { to[i] = (mine[i] + value) & mask; });
    });
}

// In place: bit j of row i becomes bit i of row j.
void transpose64(u64 rows[64]) {
    u64 mask = 0x00000000FFFFFFFFull;
    for (int width = 32; width != 0; width >>= 1, mask ^= mask << width)
        for (int row = 0; row < 64; row = ((row | width) + 1) & ~width) {
            const u64 swap = ((rows[row] >> width) ^ rows[row | width]) & mask;
            rows[row | width] ^= swap;
            rows[row] ^= swap << width;
        }
}

void bit_planes(Words x, WordsOut planes) {
    const i64 n = static_cast<i64>(x.size()), k = static_cast<i64>(planes.shape(0));
    const i64 words = static_cast<i64>(planes.shape(1));
    parallel_ranges(words, 1024, [&](i64 begin, i64 end) {
        for (i64 word = begin; word < end; ++word) {
            u64 rows[64] = {};
            for (i64 i = 0; i < 64 && 64 * word + i < n; ++i) rows[i] = x.data()[64 * word + i];
            transpose64(rows);
            for (i64 j = 0; j < k; ++j) planes.data()[j * words + word] = rows[j];
        }
    });
}

void from_bit_planes(Words planes, WordsOut x) {
    const i64 n = static_cast<i64>(x.size()), k = static_cast<i64>(planes.shape(0));
    const i64 words = static_cast<i64>(planes.shape(1));
    parallel_ranges(words, 1024, [&](i64 begin, i64 end) {
        for (i64 word = begin; word < end; ++word) {
            u64 rows[64] = {};
            for (i64 j = 0; j < k; ++j) rows[j] = planes.data()[j * words + word];
            transpose64(rows);
            for (i64 i = 0; i < 64 && 64 * word + i < n; ++i) x.data()[64 * word + i] = rows[i];
        }
    });
}

// Share of x AND y from opened d = x^a, e = y^b and the triple's shares: one pass, no branch inside.
void and_layer(int party, Words d, Words e, Words a, Words b, Words c, WordsOut out) {
    const u64 first = party == 0 ? ~u64(0) : 0;
    parallel_ranges(static_cast<i64>(out.size()), 1 << 16, [&](i64 begin, i64 end) {
        const u64 *pd = d.data(), *pe = e.data(), *pa = a.data(), *pb = b.data(), *pc = c.data();
        u64* po = out.data();
        for (i64 i = begin; i < end; ++i)
            po[i] = pc[i] ^ (pd[i] & pb[i]) ^ (pe[i] & pa[i]) ^ (pd[i] & pe[i] & first);
    });
}

}  // namespace

void register_bits(nb::module_& m) {
    m.def("pack", &pack, NoGil());
    m.def("unpack", &unpack, NoGil());
    m.def("open_packed", &open_packed, NoGil());
    m.def("bit_planes", &bit_planes, NoGil());
    m.def("from_bit_planes", &from_bit_planes, NoGil());
    m.def("and_layer", &and_layer, NoGil());
}

}  // namespace autorep
