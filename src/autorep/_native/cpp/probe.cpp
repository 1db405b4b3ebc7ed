// Processor limits measured with portable code, and the Python entry points of all probes.
#include "probe.h"

#include "bindings.h"

namespace autorep {
namespace {

i64 multiply_add(i64 count, u64* sink) {
    constexpr int kChains = 8;
    u64 sums[kChains] = {}, x = sink[0] | 1;
    const i64 steps = ceil_div(count, kChains);
    for (i64 i = 0; i < steps; ++i, x += 2)
        for (int k = 0; k < kChains; ++k) sums[k] += (sums[k] ^ x) * x;
    for (const u64 sum : sums) sink[0] ^= sum;
    return steps * kChains;
}

i64 no_aes(i64, u64*) { return 0; }

const Probes& probes() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return probes_avx512();
    if (simd_level() == Simd::avx2) return vector_aes() ? probes_vaes() : probes_avx2();
#endif
    return probes_portable();
}

u64 read(Words data) {
    u64 sums[8] = {};
    const i64 n = static_cast<i64>(data.size()) / 8 * 8;
    const u64* p = data.data();
    for (i64 i = 0; i < n; i += 8)
        for (int k = 0; k < 8; ++k) sums[k] += p[i + k];
    u64 total = 0;
    for (const u64 sum : sums) total += sum;
    return total;
}

}  // namespace

const Probes& probes_portable() {
    static const Probes portable = {multiply_add, multiply_add, multiply_add, no_aes};
    return portable;
}

void register_probe(nb::module_& m) {
    m.def("probe_multiply_add", [](int bits, i64 count, WordsOut sink) {
        const Probes& limits = probes();
        const auto probe = bits <= 46 ? limits.multiply_add46 : bits <= 52 ? limits.multiply_add52 : limits.multiply_add64;
        return probe(count, sink.data());
    }, NoGil());
    m.def("probe_aes", [](i64 count, WordsOut sink) { return probes().aes(count, sink.data()); }, NoGil());
    m.def("probe_read", &read, NoGil());
}

}  // namespace autorep
