// Pseudorandom words: the AES-128-CTR key stream from counter 0, read as little-endian words.
#include <cstring>

#include "aes.h"
#include "bindings.h"

namespace autorep {
namespace {

void store_counter(u64 counter, u8 block[16]) {  // big-endian, as in every CTR implementation
    std::memset(block, 0, 8);
    for (int i = 0; i < 8; ++i) block[15 - i] = static_cast<u8>(counter >> (8 * i));
}

void fill_portable(const AesKey& key, u64 first_block, u64* out, i64 words, u64 mask) {
    constexpr i64 kBlocks = 32;
    u8 buffer[16 * kBlocks];
    for (i64 done = 0; done < words; done += 2 * kBlocks, first_block += kBlocks) {
        for (i64 i = 0; i < kBlocks; ++i) store_counter(first_block + static_cast<u64>(i), buffer + 16 * i);
        aes_encrypt_portable(key, buffer, buffer, kBlocks);
        const i64 n = words - done < 2 * kBlocks ? words - done : 2 * kBlocks;
        std::memcpy(out + done, buffer, static_cast<size_t>(8 * n));
        for (i64 i = 0; i < n; ++i) out[done + i] &= mask;
    }
}

void prg(Bytes key, WordsOut out, int bits) {
    const AesKey expanded = aes_expand(key.data());
    const i64 words = static_cast<i64>(out.size());
    parallel_ranges(ceil_div(words, 2), 1 << 15, [&](i64 begin, i64 end) {
        const i64 stop = 2 * end < words ? 2 * end : words;
        fill_portable(expanded, static_cast<u64>(begin), out.data() + 2 * begin, stop - 2 * begin, low_mask(bits));
    });
}

}  // namespace

void register_prg(nb::module_& m) { m.def("prg", &prg, NoGil()); }

}  // namespace autorep
