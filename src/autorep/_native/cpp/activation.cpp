// Local pieces of the activation protocol: quadratic shares, ReLU shares, gather and scatter by index list.
#include "activation.h"

#include <stdexcept>

#include "bindings.h"

namespace autorep {
namespace {

constexpr i64 kGrain = 1 << 14;

void require_inside(const Index& index, i64 size) {
    i64 signs = 0;  // negative as soon as one position or its distance to the last element is
    const i64* positions = index.data();
    const i64 count = static_cast<i64>(index.size());
    for (i64 i = 0; i < count; ++i) signs |= positions[i] | (size - 1 - positions[i]);
    if (signs >= 0) return;
    for (i64 i = 0; i < count; ++i)
        if (positions[i] < 0 || positions[i] >= size)
            throw std::out_of_range("index[" + std::to_string(i) + "] = " + std::to_string(positions[i]) +
                                    " lies outside an image of " + std::to_string(size) + " elements");
}

// body(image, begin, end) on disjoint parts of the `count` positions of every image.
template <class Body>
void for_positions(i64 batch, i64 count, Body&& body) {
    parallel_ranges(batch * count, kGrain, [&](i64 begin, i64 end) {
        while (begin < end) {
            const i64 image = begin / count, stop = end < (image + 1) * count ? end : (image + 1) * count;
            body(image, begin - image * count, stop - image * count);
            begin = stop;
        }
    });
}

// Cuts the positions into runs of one channel, so that the coefficients are constants of the innermost loop.
void quadratic_share(Words opened, Index index, i64 per_channel, int bits, int shift, Words p0, Words p1, Words q0,
                     Words q1, Words a, Words b, Words c, Words mask, WordsOut out) {
    const i64 batch = static_cast<i64>(opened.shape(0)), size = static_cast<i64>(opened.shape(1));
    const i64 count = static_cast<i64>(index.size());
    require_inside(index, size);
#if AUTOREP_X86
    const auto kernel = simd_level() == Simd::avx512 ? quadratic_run_avx512 : quadratic_run_portable;
#else
    const auto kernel = quadratic_run_portable;
#endif
    for_positions(batch, count, [&](i64 image, i64 begin, i64 end) {
        const i64* positions = index.data();
        while (begin < end) {
            const i64 channel = positions[begin] / per_channel, first = channel * per_channel;
            i64 last = begin + 1;
            while (last < end && static_cast<u64>(positions[last] - first) < static_cast<u64>(per_channel)) ++last;
            const i64 at = image * count + begin;
            kernel({opened.data() + image * size, positions + begin, last - begin, bits, shift, a.data()[channel],
                    b.data()[channel], c.data()[channel], p0.data() + at, p1.data() + at, q0.data() + at,
                    q1.data() + at, mask.data() + at, out.data() + at});
            begin = last;
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
    for_positions(static_cast<i64>(source.shape(0)), count, [&](i64 image, i64 begin, i64 end) {
        const u64* row = source.data() + image * size;
        const i64* positions = index.data();
        u64* to = out.data() + image * count;
        for (i64 i = begin; i < end; ++i) to[i] = row[positions[i]];
    });
}

// Where a position occurs twice, either value may stay.
void scatter_shift(WordsOut out, Index index, Words values, int shift) {
    const i64 size = static_cast<i64>(out.shape(1)), count = static_cast<i64>(index.size());
    require_inside(index, size);
    for_positions(static_cast<i64>(out.shape(0)), count, [&](i64 image, i64 begin, i64 end) {
        u64* row = out.data() + image * size;
        const i64* positions = index.data();
        const u64* from = values.data() + image * count;
        for (i64 i = begin; i < end; ++i) row[positions[i]] = from[i] >> shift;
    });
}

}  // namespace

// The public wrap bit selects by a mask, not by a branch.
void quadratic_run_portable(const QuadraticRun& run) {
    const u64 offset = u64(1) << (run.bits - 2 - run.shift);
    for (i64 i = 0; i < run.count; ++i) {
        const u64 y = run.row[run.positions[i]];
        const u64 upper = (y >> (run.bits - 1)) - 1;  // all ones where the top bit is 0
        const u64 t = (y >> run.shift) - offset;
        const u64 p = run.p0[i] ^ ((run.p0[i] ^ run.p1[i]) & upper);
        const u64 q = run.q0[i] ^ ((run.q0[i] ^ run.q1[i]) & upper);
        run.out[i] = (run.a * t - 2 * p + run.b) * t + q + run.c + run.mask[i];
    }
}

void register_activation(nb::module_& m) {
    m.def("quadratic_share", &quadratic_share, NoGil());
    m.def("relu_share", &relu_share, NoGil());
    m.def("gather", &gather, NoGil());
    m.def("scatter_shift", &scatter_shift, NoGil());
}

}  // namespace autorep
