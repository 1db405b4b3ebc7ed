// Words of 1..64 bits packed without gaps, bit planes, and the bit-sliced AND of two shared bits.
#include "bits.h"

#include <algorithm>

#include "bindings.h"
#include "streams.h"

namespace autorep {
namespace {

constexpr i64 kGroup = 64;  // words that end on a byte boundary whatever their width

// body(first word, number of words) on ranges that start on a byte boundary of the packed form.
template <class Body>
void for_groups(i64 count, Body&& body) {
    parallel_ranges(ceil_div(count, kGroup), 128, [&](i64 begin, i64 end) {
        body(kGroup * begin, (kGroup * end < count ? kGroup * end : count) - kGroup * begin);
    });
}

void pack(Words x, int bits, BytesOut out) {
    const BitOps& ops = bit_ops();
    for_groups(static_cast<i64>(x.size()),
               [&](i64 first, i64 n) { ops.pack(x.data() + first, n, bits, out.data() + first / 8 * bits); });
}

// mask += share + offset, and the sum packed while it is in the cache.
void mask_packed(Words share, WordsOut mask, u64 offset, int bits, BytesOut out) {
    const BitOps& ops = bit_ops();
    for_blocks<kPassBlock>(static_cast<i64>(mask.size()), [&](i64 first, i64 n) {
        const u64* __restrict from = share.data() + first;
        u64* __restrict to = mask.data() + first;
        for (i64 i = 0; i < n; ++i) to[i] += from[i] + offset;
        ops.pack(to, n, bits, out.data() + first / 8 * bits);
    });
}

void unpack(Bytes in, int bits, WordsOut out) {
    const BitOps& ops = bit_ops();
    for_groups(static_cast<i64>(out.size()), [&](i64 first, i64 n) {
        ops.unpack(in.data() + first / 8 * bits, n, bits, nullptr, out.data() + first);
    });
}

void open_packed(Words own, Bytes peer, int bits, WordsOut out) {
    const BitOps& ops = bit_ops();
    for_groups(static_cast<i64>(out.size()), [&](i64 first, i64 n) {
        ops.unpack(peer.data() + first / 8 * bits, n, bits, own.data() + first, out.data() + first);
    });
}

// Planes often lie a power of two apart, where cache lines evict each other: so eight words of each are made in a small
// block and then written together, and read together on the way back.
constexpr i64 kBlock = 8;

void bit_planes(Words x, WordsOut planes) {
    const BitOps& ops = bit_ops();
    const i64 k = static_cast<i64>(planes.shape(0)), stride = static_cast<i64>(planes.shape(1));
    for_groups(static_cast<i64>(x.size()), [&](i64 first, i64 n) {
        u64 block[64 * kBlock];
        for (i64 i = 0; i < n; i += kBlock * kGroup) {
            const i64 here = n - i < kBlock * kGroup ? n - i : kBlock * kGroup, words = ceil_div(here, kGroup);
            for (i64 w = 0; w < words; ++w) {
                const i64 left = here - w * kGroup;
                ops.to_planes(x.data() + first + i + w * kGroup, left < kGroup ? left : kGroup, k, block + w, kBlock);
            }
            for (i64 j = 0; j < k; ++j)
                std::copy_n(block + j * kBlock, words, planes.data() + j * stride + (first + i) / kGroup);
        }
    });
}

void from_bit_planes(Words planes, WordsOut x) {
    const BitOps& ops = bit_ops();
    const i64 k = static_cast<i64>(planes.shape(0)), stride = static_cast<i64>(planes.shape(1));
    for_groups(static_cast<i64>(x.size()), [&](i64 first, i64 n) {
        u64 block[64 * kBlock];
        for (i64 i = 0; i < n; i += kBlock * kGroup) {
            const i64 here = n - i < kBlock * kGroup ? n - i : kBlock * kGroup, words = ceil_div(here, kGroup);
            for (i64 j = 0; j < k; ++j)
                std::copy_n(planes.data() + j * stride + (first + i) / kGroup, words, block + j * kBlock);
            for (i64 w = 0; w < words; ++w) {
                const i64 left = here - w * kGroup;
                ops.from_planes(block + w, kBlock, k, left < kGroup ? left : kGroup, x.data() + first + i + w * kGroup);
            }
        }
    });
}

// Share of x AND y from opened d = x^a, e = y^b and the triple's shares: one pass, no branch inside.
void and_layer(int party, Words d, Words e, Words a, Words b, Words c, WordsOut out) {
    const u64 first = party == 0 ? ~u64(0) : 0;
    parallel_ranges(static_cast<i64>(out.size()), 1 << 14, [&](i64 begin, i64 end) {
        const u64 *pd = d.data(), *pe = e.data(), *pa = a.data(), *pb = b.data(), *pc = c.data();
        u64* po = out.data();
        for (i64 i = begin; i < end; ++i)
            po[i] = pc[i] ^ (pd[i] & pb[i]) ^ (pe[i] & pa[i]) ^ (pd[i] & pe[i] & first);
    });
}

}  // namespace

const BitOps& bit_ops() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return bit_ops_avx512();
    if (simd_level() == Simd::avx2) return bit_ops_avx2();
#endif
    return bit_ops_portable();
}

void register_bits(nb::module_& m) {
    m.def("pack", &pack, NoGil());
    m.def("mask_packed", &mask_packed, NoGil());
    m.def("unpack", &unpack, NoGil());
    m.def("open_packed", &open_packed, NoGil());
    m.def("bit_planes", &bit_planes, NoGil());
    m.def("from_bit_planes", &from_bit_planes, NoGil());
    m.def("and_layer", &and_layer, NoGil());
}

}  // namespace autorep
