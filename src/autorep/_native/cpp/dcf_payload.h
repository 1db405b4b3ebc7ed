// How a DCF's payload of three numbers lies in a block and in the bytes of a key.
//
// Everything is static: files built for different instruction sets must never share one compiled copy.
#pragma once
#include <cstring>

#include "dcf.h"

namespace autorep {

struct Payload {
    u64 v[3];
};

static inline u64 shift_right(u64 x, int by) { return by >= 64 ? 0 : x >> by; }
static inline u64 shift_left(u64 x, int by) { return by >= 64 ? 0 : x << by; }

[[maybe_unused]] static inline Payload payload_of(Block b, const DcfShape& shape) {
    return {{b.lo, b.hi, shift_right(b.lo, shape.L) + shift_left(shift_right(b.hi, shape.L), 64 - shape.L)}};
}

[[maybe_unused]] static inline Payload reduce(Payload p, const DcfShape& shape) {
    return {{p.v[0] & low_mask(shape.L), p.v[1] & low_mask(shape.L), p.v[2] & low_mask(shape.F)}};
}

// v0 | v1 << L | v2 << 2L as a little-endian number of value_bytes bytes, in two words.
[[maybe_unused]] static inline Block join_payload(Payload p, const DcfShape& shape) {
    p = reduce(p, shape);
    const int L = shape.L;
    Block out = {p.v[0] | shift_left(p.v[1], L), shift_right(p.v[1], 64 - L)};
    if (2 * L < 64) {
        out.lo |= shift_left(p.v[2], 2 * L);
        out.hi |= shift_right(p.v[2], 64 - 2 * L);
    } else {
        out.hi |= shift_left(p.v[2], 2 * L - 64);
    }
    return out;
}

[[maybe_unused]] static inline void store_payload(Payload p, const DcfShape& shape, u8* out) {
    const Block joined = join_payload(p, shape);
    std::memcpy(out, &joined, static_cast<size_t>(shape.value_bytes));
}

[[maybe_unused]] static inline Payload load_payload(const u8* in, const DcfShape& shape) {
    u64 words[2] = {0, 0};
    std::memcpy(words, in, static_cast<size_t>(shape.value_bytes));
    const int L = shape.L;
    const u64 third = 2 * L < 64 ? shift_right(words[0], 2 * L) | shift_left(words[1], 64 - 2 * L)
                                 : shift_right(words[1], 2 * L - 64);
    return reduce({{words[0], shift_right(words[0], L) | shift_left(words[1], 64 - L), third}}, shape);
}

}  // namespace autorep
