// What a dealer does with most tensors: the sum of two parties' streams (less something), and a value less one party's
// stream, packed.
#include "streams.h"

#include <algorithm>
#include <optional>

#include <nanobind/stl/optional.h>

#include "bindings.h"

namespace autorep {
namespace {

void prg_sum(Bytes key0, Bytes key1, int bits, std::optional<Words> less, WordsOut out) {
    const WordStream one = WordStream::expanded(key0.data(), bits), other = WordStream::expanded(key1.data(), bits);
    const u64 mask = low_mask(bits);
    for_blocks(static_cast<i64>(out.size()), [&](i64 first, i64 count) {
        u64 second[kStreamBlock];
        u64* to = out.data() + first;
        one.read(first, count, to);
        other.read(first, count, second);
        if (less)
            for (i64 i = 0; i < count; ++i) second[i] -= less->data()[first + i];
        for (i64 i = 0; i < count; ++i) to[i] = (to[i] + second[i]) & mask;
    });
}

void share_packed(Words value, Bytes key, int bits, BytesOut out) {
    const WordStream stream = WordStream::expanded(key.data(), bits);
    for_blocks(static_cast<i64>(value.size()), [&](i64 first, i64 count) {
        u64 block[kStreamBlock];
        std::copy_n(value.data() + first, count, block);
        pack_difference(stream, first, count, block, out.data());
    });
}

}  // namespace

void register_streams(nb::module_& m) {
    m.def("prg_sum", &prg_sum, NoGil());
    m.def("share_packed", &share_packed, NoGil());
}

}  // namespace autorep
