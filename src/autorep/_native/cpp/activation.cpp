// Local pieces of the activation protocol: ReLU shares, gather and scatter by index list.
#include "activation.h"

#include <atomic>
#include <optional>

#include <nanobind/stl/optional.h>

#include "bindings.h"
#include "positions.h"
#include "streams.h"

namespace autorep {
namespace {

constexpr i64 kGrain = 1 << 13;

// body(image, begin, end) on disjoint parts of the `count` positions of every image.
template <class Body>
void for_positions(i64 batch, i64 count, Body&& body) {
    parallel_ranges(batch * count, kGrain, [&](i64 begin, i64 end) { for_images(begin, end, count, body); });
}

template <bool HasValue>
void relu_loop_of(const ReluRun& run) {
    const u64 *__restrict t = run.t, *__restrict c1 = run.c1, *__restrict sign = run.sign, *__restrict v = run.v;
    const u64 *__restrict r = run.r, *__restrict m = run.m;
    const u64 *__restrict s = run.s, *__restrict sr = run.sr, *__restrict sm = run.sm;
    u64* __restrict out = run.out;
    const u64 one = run.one;
    const int sign_bit = run.sign_bit, wrap_shift = run.wrap_shift;
    for (i64 i = 0; i < run.count; ++i) {
        const u64 flipped = (sign[i] >> sign_bit & 1) - 1;
        const u64 d0 = (HasValue ? v[3 * i] : 0) + s[i], r0 = (HasValue ? v[3 * i + 1] : 0) + sr[i];
        const u64 m0 = (HasValue ? v[3 * i + 2] : 0) + sm[i];
        const u64 d = d0 ^ ((d0 ^ (one - d0)) & flipped);
        const u64 dr = r0 ^ ((r0 ^ (r[i] - r0)) & flipped);
        const u64 dm = m0 ^ ((m0 ^ (m[i] - m0)) & flipped);
        out[i] = t[i] * d - dr + ((c1[i] * dm) << wrap_shift);
    }
}

void relu_loop(const ReluRun& run) { run.v ? relu_loop_of<true>(run) : relu_loop_of<false>(run); }

// Memory limits the loop; four elements at a time (AVX2) are no faster than what compilers make of it.
ReluKernel* relu_kernel() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return relu_run_avx512;
#endif
    return relu_loop;
}

void relu_share(Words t, Words c1, Words sign, int sign_bit, u64 one, std::optional<Words> v, Words r, Words m, Words s,
                Words sr, Words sm, int wrap_shift, WordsOut out) {
    ReluKernel* const kernel = relu_kernel();
    parallel_ranges(static_cast<i64>(out.size()), kGrain, [&](i64 begin, i64 end) {
        kernel({end - begin, one, sign_bit, wrap_shift, t.data() + begin, c1.data() + begin, sign.data() + begin,
                v ? v->data() + 3 * begin : nullptr, r.data() + begin, m.data() + begin, s.data() + begin, sr.data() + begin,
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

// T = (y >> shift) - 2^(bits - 2 - shift) and c = 1 - (top bit of y) of the words y at some positions.
void gather_lifted(Words source, Index index, int bits, int shift, WordsOut public_part, WordsOut lifted) {
    const i64 size = static_cast<i64>(source.shape(1)), count = static_cast<i64>(index.size());
    const u64 middle = u64(1) << (bits - 2 - shift);
    for_checked_positions(index, static_cast<i64>(source.shape(0)), size, [&](i64 image, i64 begin, i64 end) {
        const u64* row = source.data() + image * size;
        const i64* positions = index.data();
        for (i64 i = begin; i < end; ++i) {
            const u64 y = row[positions[i]];
            public_part.data()[image * count + i] = (y >> shift) - middle;
            lifted.data()[image * count + i] = 1 - (y >> (bits - 1));
        }
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

// The same for words that are still to be opened: ((own + peer) modulo 2^bits) >> shift, in one pass.
void scatter_opened(WordsOut out, Index index, Words own, Bytes peer, int bits, int shift) {
    const i64 size = static_cast<i64>(out.shape(1)), count = static_cast<i64>(index.size());
    const bool rise = require_inside(index, size);
    const BitOps& ops = bit_ops();
    for_blocks<kPassBlock>(static_cast<i64>(own.size()), [&](i64 first, i64 n) {
        u64 opened[kPassBlock];
        ops.unpack(peer.data() + first / 8 * bits, n, bits, own.data() + first, opened);
        for_images(first, first + n, count, [&](i64 image, i64 from, i64 to) {
            u64* row = out.data() + image * size;
            const i64* positions = index.data();
            const u64* values = opened + (image * count - first);
            i64 i = from;
            for (; i + 8 <= to; i += 8) {  // most have their neighbours beside them
                u64* first = row + positions[i];
                if (rise && positions[i + 7] - positions[i] == 7)
                    for (int k = 0; k < 8; ++k) first[k] = values[i + k] >> shift;
                else
                    for (int k = 0; k < 8; ++k) row[positions[i + k]] = values[i + k] >> shift;
            }
            for (; i < to; ++i) row[positions[i]] = values[i] >> shift;
        });
    });
}

}  // namespace

void register_activation(nb::module_& m) {
    m.def("relu_share", &relu_share, NoGil());
    m.def("gather", &gather, NoGil());
    m.def("gather_lifted", &gather_lifted, NoGil());
    m.def("scatter_shift", &scatter_shift, NoGil());
    m.def("scatter_opened", &scatter_opened, NoGil());
}

}  // namespace autorep
