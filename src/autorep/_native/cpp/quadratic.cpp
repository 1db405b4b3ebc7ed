// Quadratics: a dealer's parts, a party's P and Q, and the share of a t^2 + b t + c between the two openings.
//
// The parts never lie in memory as words: each block is expanded or unpacked, combined, and written once.
#include <algorithm>
#include <vector>

#include "bindings.h"
#include "positions.h"
#include "quadratic_loops.h"
#include "streams.h"

namespace autorep {

const QuadraticOps& quadratic_ops_portable() {
    static const QuadraticOps ops = {share_loop, material_loop, parts_loop};
    return ops;
}

namespace {

constexpr i64 kGrain = 1 << 12;

const QuadraticOps& quadratic_ops() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return quadratic_ops_avx512();
    if (simd_level() == Simd::avx2) return quadratic_ops_avx2();
#endif
    return quadratic_ops_portable();
}

struct Blocks {  // one block of every part
    alignas(64) u64 words[kQuadraticParts][kStreamBlock];
};

void quadratic_share(Words opened, Index index, i64 per_channel, int bits, int shift, Words p0, Words p1, Words q0,
                     Words q1, Words a, Words b, Words c, Words mask, WordsOut out) {
    const i64 batch = static_cast<i64>(opened.shape(0)), size = static_cast<i64>(opened.shape(1));
    const i64 count = static_cast<i64>(index.size());
    const i64* positions = index.data();
    const bool rise = require_inside(index, size);
    const QuadraticOps& ops = quadratic_ops();
    parallel_ranges(batch * count, kGrain, [&](i64 first, i64 last) {
        for_images(first, last, count, [&](i64 image, i64 from, i64 to) {
            for_channels(positions, rise, from, to, per_channel, [&](i64 channel, i64 begin, i64 end) {
                const i64 at = image * count + begin;
                ops.share({opened.data() + image * size, positions + begin, rise, end - begin, bits, shift, a.data()[channel],
                           b.data()[channel], c.data()[channel], p0.data() + at, p1.data() + at, q0.data() + at,
                           q1.data() + at, mask.data() + at, out.data() + at});
            });
        });
    });
}

// `sources`: keys of sixteen bytes where `expanded`, else packed words. P and Q for c = 1 only where the wrap bit enters.
void quadratic_material(const std::vector<Bytes>& sources, bool expanded, const std::vector<int>& bits, Index index,
                        i64 per_channel, Words a, Words b, int power, WordsOut p0, WordsOut p1, WordsOut q0, WordsOut q1) {
    const bool rise = require_inside(index, per_channel * static_cast<i64>(a.size()));
    std::vector<WordStream> streams;
    for (size_t k = 0; k < sources.size(); ++k)
        streams.push_back(expanded ? WordStream::expanded(sources[k].data(), bits[k])
                                   : WordStream::packed(sources[k].data(), bits[k]));
    const QuadraticOps& ops = quadratic_ops();
    for_blocks(static_cast<i64>(p0.size()), [&](i64 first, i64 length) {
        Blocks blocks;
        for (size_t k = 0; k < streams.size(); ++k) streams[k].read(first, length, blocks.words[k]);
        for_images(first, first + length, static_cast<i64>(index.size()), [&](i64 image, i64 from, i64 to) {
            for_channels(index.data(), rise, from, to, per_channel, [&](i64 channel, i64 begin, i64 end) {
                const i64 at = image * static_cast<i64>(index.size()) + begin;
                MaterialRun run = {end - begin, a.data()[channel], b.data()[channel], power,
                                   streams.size() == kQuadraticParts, {}, p0.data() + at, p1.data() + at,
                                   q0.data() + at, q1.data() + at};
                for (size_t k = 0; k < streams.size(); ++k) run.part[k] = blocks.words[k] + (at - first);
                ops.material(run);
            });
        });
    });
}

// To `outs` what the second party receives: the parts, less the first party's streams, packed. To `rest` what nobody does.
void quadratic_differences(Words r, const std::vector<Bytes>& keys, const std::vector<int>& widths, Index index,
                           i64 per_channel, Words alpha, Words beta, int bits, int shift,
                           const std::vector<BytesOut>& outs, WordsOut rest) {
    const bool rise = require_inside(index, per_channel * static_cast<i64>(alpha.size()));
    std::vector<WordStream> streams;
    for (size_t k = 0; k < keys.size(); ++k) streams.push_back(WordStream::expanded(keys[k].data(), widths[k]));
    const QuadraticOps& ops = quadratic_ops();
    for_blocks(static_cast<i64>(r.size()), [&](i64 first, i64 length) {
        Blocks blocks;
        for_images(first, first + length, static_cast<i64>(index.size()), [&](i64 image, i64 from, i64 to) {
            for_channels(index.data(), rise, from, to, per_channel, [&](i64 channel, i64 begin, i64 end) {
                const i64 at = image * static_cast<i64>(index.size()) + begin;
                PartsRun run = {end - begin, alpha.data()[channel], beta.data()[channel], bits, shift, bits - shift,
                                streams.size() == kQuadraticParts, r.data() + at, rest.data() + at, {}};
                for (size_t k = 0; k < kQuadraticParts; ++k) run.part[k] = blocks.words[k] + (at - first);
                ops.parts(run);
            });
        });
        for (size_t k = 0; k < streams.size(); ++k)
            pack_difference(streams[k], first, length, blocks.words[k], outs[k].data());
    });
}

}  // namespace

void register_quadratic(nb::module_& m) {
    m.def("quadratic_share", &quadratic_share, NoGil());
    m.def("quadratic_material", &quadratic_material, NoGil());
    m.def("quadratic_differences", &quadratic_differences, NoGil());
}

}  // namespace autorep
