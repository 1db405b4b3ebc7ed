// Local pieces of the activation protocol: quadratic shares, ReLU shares, gather and scatter by index list.
#include <stdexcept>

#include "bindings.h"

namespace autorep {
namespace {

constexpr i64 kGrain = 1 << 14;

void require_inside(const Index& index, i64 size) {
    u64 largest = 0;
    for (i64 i = 0; i < static_cast<i64>(index.size()); ++i) {
        const u64 position = static_cast<u64>(index.data()[i]);  // a negative one becomes huge
        largest = position > largest ? position : largest;
    }
    if (largest >= static_cast<u64>(size) && index.size() != 0)
        throw std::out_of_range("index " + std::to_string(static_cast<i64>(largest)) + " lies outside an image of " +
                                std::to_string(size) + " elements");
}

// z = a T^2 - 2 T P + Q + b T + c + mask with T the public part of the lifted, truncated pre-activation; the
// public wrap bit selects P and Q among the two prepared alternatives by a mask, not a branch.
void quadratic_share(Words opened, Index index, i64 per_channel, int bits, int shift, Words p0, Words p1, Words q0,
                     Words q1, Words a, Words b, Words c, Words mask, WordsOut out) {
    const i64 batch = static_cast<i64>(opened.shape(0)), size = static_cast<i64>(opened.shape(1));
    const i64 count = static_cast<i64>(index.size());
    const u64 offset = u64(1) << (bits - 2 - shift);
    require_inside(index, size);
    parallel_ranges(batch * count, kGrain, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end;) {
            const i64 image = i / count, stop = end < (image + 1) * count ? end : (image + 1) * count;
            const u64* row = opened.data() + image * size;
            const i64* positions = index.data() - image * count;
            for (; i < stop; ++i) {
                const i64 position = positions[i], channel = position / per_channel;
                const u64 y = row[position];
                const u64 wrapped = (y >> (bits - 1)) - 1;  // all ones when c = 1
                const u64 t = (y >> shift) - offset;
                const u64 p = p0.data()[i] ^ ((p0.data()[i] ^ p1.data()[i]) & wrapped);
                const u64 q = q0.data()[i] ^ ((q0.data()[i] ^ q1.data()[i]) & wrapped);
                const u64 slope = a.data()[channel] * t - 2 * p + b.data()[channel];
                out.data()[i] = slope * t + q + c.data()[channel] + mask.data()[i];
            }
        }
    });
}

// z = T d - dR + c dm 2^(L-f) from the comparison's shares v + (s, sR, sm), complemented where `flip` says so.
void relu_share(Words t, Words c1, Words flip, u64 one, Words v, Words r, Words m, Words s, Words sr, Words sm,
                int wrap_shift, WordsOut out) {
    parallel_ranges(static_cast<i64>(out.size()), kGrain, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) {
            const u64 flipped = u64(0) - flip.data()[i];
            const u64* value = v.data() + 3 * i;
            const u64 d0 = value[0] + s.data()[i], r0 = value[1] + sr.data()[i], m0 = value[2] + sm.data()[i];
            const u64 d = d0 ^ ((d0 ^ (one - d0)) & flipped);
            const u64 dr = r0 ^ ((r0 ^ (r.data()[i] - r0)) & flipped);
            const u64 dm = m0 ^ ((m0 ^ (m.data()[i] - m0)) & flipped);
            out.data()[i] = t.data()[i] * d - dr + ((c1.data()[i] * dm) << wrap_shift);
        }
    });
}

void gather(Words source, Index index, WordsOut out) {
    const i64 size = static_cast<i64>(source.shape(1)), count = static_cast<i64>(index.size());
    require_inside(index, size);
    for (i64 image = 0; image < static_cast<i64>(source.shape(0)); ++image) {
        const u64* row = source.data() + image * size;
        u64* to = out.data() + image * count;
        for (i64 i = 0; i < count; ++i) to[i] = row[index.data()[i]];
    }
}

void scatter_shift(WordsOut out, Index index, Words values, int shift) {
    const i64 size = static_cast<i64>(out.shape(1)), count = static_cast<i64>(index.size());
    require_inside(index, size);
    for (i64 image = 0; image < static_cast<i64>(out.shape(0)); ++image) {
        u64* row = out.data() + image * size;
        const u64* from = values.data() + image * count;
        for (i64 i = 0; i < count; ++i) row[index.data()[i]] = from[i] >> shift;
    }
}

}  // namespace

void register_activation(nb::module_& m) {
    m.def("quadratic_share", &quadratic_share, NoGil());
    m.def("relu_share", &relu_share, NoGil());
    m.def("gather", &gather, NoGil());
    m.def("scatter_shift", &scatter_shift, NoGil());
}

}  // namespace autorep
