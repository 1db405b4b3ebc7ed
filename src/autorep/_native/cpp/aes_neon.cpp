// AES-128 with the AES instructions of ARMv8, eight blocks in flight.
#include "aes.h"

#if AUTOREP_ARM
#include <arm_neon.h>

namespace autorep {
namespace {

constexpr int kFlight = 8;

// ARM's instruction adds the round key before the substitution, so the last key remains to be added.
void encrypt(const AesKey& key, uint8x16_t (&s)[kFlight]) {
    for (int r = 0; r < 9; ++r) {
        const uint8x16_t round = vld1q_u8(key.round[r]);
        for (uint8x16_t& block : s) block = vaesmcq_u8(vaeseq_u8(block, round));
    }
    const uint8x16_t ninth = vld1q_u8(key.round[9]), last = vld1q_u8(key.round[10]);
    for (uint8x16_t& block : s) block = veorq_u8(vaeseq_u8(block, ninth), last);
}

void ctr(const AesKey& key, u64 first, u64* out, i64 words, u64 mask) {
    const uint64x2_t cut = vdupq_n_u64(mask);
    for (i64 done = 0; done < words; done += 2 * kFlight, first += kFlight) {
        uint8x16_t s[kFlight];
        for (int k = 0; k < kFlight; ++k)
            s[k] = vreinterpretq_u8_u64(
                vcombine_u64(vcreate_u64(0), vcreate_u64(__builtin_bswap64(first + static_cast<u64>(k)))));
        encrypt(key, s);
        u64 tail[2 * kFlight];
        const bool whole = words - done >= 2 * kFlight;
        u64* to = whole ? out + done : tail;
        for (int k = 0; k < kFlight; ++k) vst1q_u64(to + 2 * k, vandq_u64(vreinterpretq_u64_u8(s[k]), cut));
        if (!whole)
            for (i64 i = 0; i < words - done; ++i) out[done + i] = tail[i];
    }
}

void mmo(const AesKey& key, const Block* in, Block* out, i64 count) {
    for (i64 i = 0; i < count; i += kFlight) {
        const i64 n = count - i < kFlight ? count - i : kFlight;
        uint8x16_t s[kFlight], kept[kFlight];
        for (int k = 0; k < kFlight; ++k)
            s[k] = kept[k] = k < n ? vld1q_u8(reinterpret_cast<const u8*>(in + i + k)) : vdupq_n_u8(0);
        encrypt(key, s);
        for (int k = 0; k < kFlight; ++k)
            if (k < n) vst1q_u8(reinterpret_cast<u8*>(out + i + k), veorq_u8(s[k], kept[k]));
    }
}

}  // namespace

const AesOps& aes_neon() {
    static const AesOps ops = {aes_portable().expand, ctr, mmo};
    return ops;
}

}  // namespace autorep
#endif
