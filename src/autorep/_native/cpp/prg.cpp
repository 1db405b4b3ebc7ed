// Pseudorandom words: the AES-128-CTR key stream from counter 0, read as little-endian words.
#include "aes.h"
#include "bindings.h"

namespace autorep {
namespace {

void prg(Bytes key, WordsOut out, int bits) {
    const AesKey expanded = aes_expand(key.data());
    const AesOps& aes = aes_ops();
    const i64 words = static_cast<i64>(out.size());
    parallel_ranges(ceil_div(words, 2), 1 << 13, [&](i64 begin, i64 end) {
        const i64 stop = 2 * end < words ? 2 * end : words;
        aes.ctr(expanded, static_cast<u64>(begin), out.data() + 2 * begin, stop - 2 * begin, low_mask(bits));
    });
}

}  // namespace

void register_prg(nb::module_& m) { m.def("prg", &prg, NoGil()); }

}  // namespace autorep
