// AES-128 at several speeds: counter mode for the generator, fixed-key hashing for comparisons.
#pragma once
#include "common.h"

namespace autorep {

struct AesKey {
    alignas(64) u8 round[11][16];
};

struct Block {
    u64 lo, hi;
};

struct AesOps {
    // Key schedule, without tables or branches on the key.
    AesKey (*expand)(const u8 key[16]);
    // Key stream from block number `first` on, as little-endian words, each cut by `mask`.
    void (*ctr)(const AesKey& key, u64 first, u64* out, i64 words, u64 mask);
    // Matyas-Meyer-Oseas hash: out[i] = AES(key, in[i]) ^ in[i].
    void (*mmo)(const AesKey& key, const Block* in, Block* out, i64 count);
};

const AesOps& aes_portable();
const AesOps& aes_avx2();
const AesOps& aes_vaes();
const AesOps& aes_avx512();
const AesOps& aes_neon();
const AesOps& aes_ops();  // of the active level

static inline AesKey aes_expand(const u8 key[16]) { return aes_ops().expand(key); }

}  // namespace autorep
