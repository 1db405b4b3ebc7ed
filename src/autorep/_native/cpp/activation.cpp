// Local pieces of the activation protocol: ReLU shares, gather and scatter by index list.
#include "activation.h"

#include <atomic>

#include "bindings.h"
#include "positions.h"

namespace autorep {
namespace {

constexpr i64 kGrain = 1 << 14;

// body(image, begin, end) on disjoint parts of the `count` positions of every image.
template <class Body>
void for_positions(i64 batch, i64 count, Body&& body) {
    parallel_ranges(batch * count, kGrain, [&](i64 begin, i64 end) { for_images(begin, end, count, body); });
}

void relu_share(Words t, Words c1, Words flip, u64 one, Words v, Words r, Words m, Words s, Words sr, Words sm,
                int wrap_shift, WordsOut out) {
#if AUTOREP_X86
    const auto kernel = simd_level() == Simd::avx512 ? relu_run_avx512 : relu_run_portable;
#else
    const auto kernel = relu_run_portable;
#endif
    parallel_ranges(static_cast<i64>(out.size()), kGrain, [&](i64 begin, i64 end) {
        kernel({end - begin, one, wrap_shift, t.data() + begin, c1.data() + begin, flip.data() + begin,
                v.data() + 3 * begin, r.data() + begin, m.data() + begin, s.data() + begin, sr.data() + begin,
                sm.data() + begin, out.data() + begin});
    });
}

// body(image, begin, end) on blocks of positions that were just checked and are still in the cache; throws after all
// others are done when some position lies outside.
template <class Body>
void for_checked_positions(const Index& index, i64 batch, i64 size, Body&& body) {
    constexpr i64 kBlock = 2048;
    std::atomic<bool> outside{false};
    for_positions(batch, static_cast<i64>(index.size()), [&](i64 image, i64 begin, i64 end) {
        for (; begin < end; begin += kBlock) {
            const i64 stop = begin + kBlock < end ? begin + kBlock : end;
            if (all_inside(index.data() + begin, stop - begin, size)) body(image, begin, stop);
            else outside = true;
        }
    });
    if (outside) require_inside(index, size);
}

void gather(Words source, Index index, WordsOut out) {
    const i64 size = static_cast<i64>(source.shape(1)), count = static_cast<i64>(index.size());
    for_checked_positions(index, static_cast<i64>(source.shape(0)), size, [&](i64 image, i64 begin, i64 end) {
        const u64* row = source.data() + image * size;
        const i64* positions = index.data();
        u64* to = out.data() + image * count;
        for (i64 i = begin; i < end; ++i) to[i] = row[positions[i]];
    });
}

// Where a position occurs twice, either value may stay.
void scatter_shift(WordsOut out, Index index, Words values, int shift) {
    const i64 size = static_cast<i64>(out.shape(1)), count = static_cast<i64>(index.size());
    for_checked_positions(index, static_cast<i64>(out.shape(0)), size, [&](i64 image, i64 begin, i64 end) {
        u64* row = out.data() + image * size;
        const i64* positions = index.data();
        const u64* from = values.data() + image * count;
        for (i64 i = begin; i < end; ++i) row[positions[i]] = from[i] >> shift;
    });
}

}  // namespace

void relu_run_portable(const ReluRun& run) {
    for (i64 i = 0; i < run.count; ++i) {
        const u64 flipped = u64(0) - run.flip[i];
        const u64 d0 = run.v[3 * i] + run.s[i], r0 = run.v[3 * i + 1] + run.sr[i], m0 = run.v[3 * i + 2] + run.sm[i];
        const u64 d = d0 ^ ((d0 ^ (run.one - d0)) & flipped);
        const u64 dr = r0 ^ ((r0 ^ (run.r[i] - r0)) & flipped);
        const u64 dm = m0 ^ ((m0 ^ (run.m[i] - m0)) & flipped);
        run.out[i] = run.t[i] * d - dr + ((run.c1[i] * dm) << run.wrap_shift);
    }
}

void register_activation(nb::module_& m) {
    m.def("relu_share", &relu_share, NoGil());
    m.def("gather", &gather, NoGil());
    m.def("scatter_shift", &scatter_shift, NoGil());
}

}  // namespace autorep
