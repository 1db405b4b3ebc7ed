// AES-128, one block cipher at three speeds; blocks are 16 bytes in memory order.
#pragma once
#include "common.h"

namespace autorep {

struct AesKey {
    alignas(64) u8 round[11][16];
};

// Key schedule without tables or branches on the key.
AesKey aes_expand(const u8 key[16]);

// out[i] = AES(key, in[i]) for `count` blocks; in may equal out. Bit-sliced, no secret-dependent address.
void aes_encrypt_portable(const AesKey& key, const u8* in, u8* out, i64 count);

}  // namespace autorep
