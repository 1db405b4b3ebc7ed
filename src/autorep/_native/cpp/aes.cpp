// Portable AES-128: bit-sliced, so neither a branch nor an address depends on key or data.
//
// Sixty-four bytes (four blocks) at a time; plane j holds bit j of each. A byte in row r, column c of block b
// sits at position 16c + 4r + b of a plane: rows are nibbles, columns are 16-bit groups.
#include "aes.h"

#include <cstring>

namespace autorep {
namespace {

struct Planes {
    u64 bit[8];
};

// An 8x8 bit matrix in one word: bit 8r + c moves to bit 8c + r.
u64 transpose8(u64 x) {
    u64 t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
    return x ^ t ^ (t << 28);
}

Planes slice(const u8* blocks) {  // four blocks
    Planes planes = {};
    for (int group = 0; group < 8; ++group) {  // eight neighbouring positions: two bytes of each block
        u64 word = 0;
        for (int k = 0; k < 8; ++k) word |= u64(blocks[16 * (k & 3) + 2 * group + (k >> 2)]) << (8 * k);
        word = transpose8(word);
        for (int j = 0; j < 8; ++j) planes.bit[j] |= ((word >> (8 * j)) & 255) << (8 * group);
    }
    return planes;
}

void unslice(const Planes& planes, u8* blocks) {
    for (int group = 0; group < 8; ++group) {
        u64 word = 0;
        for (int j = 0; j < 8; ++j) word |= ((planes.bit[j] >> (8 * group)) & 255) << (8 * j);
        word = transpose8(word);
        for (int k = 0; k < 8; ++k) blocks[16 * (k & 3) + 2 * group + (k >> 2)] = static_cast<u8>(word >> (8 * k));
    }
}

// Reduces a polynomial of degree 14 modulo x^8 + x^4 + x^3 + x + 1.
Planes reduce(u64 p[15]) {
    for (int j = 14; j >= 8; --j) {
        p[j - 4] ^= p[j];
        p[j - 5] ^= p[j];
        p[j - 7] ^= p[j];
        p[j - 8] ^= p[j];
    }
    Planes out;
    for (int j = 0; j < 8; ++j) out.bit[j] = p[j];
    return out;
}

Planes multiply(const Planes& a, const Planes& b) {
    u64 p[15];  // each coefficient as one sum, which stays in a register
    for (int k = 0; k < 15; ++k) {
        u64 sum = 0;
        for (int i = k < 8 ? 0 : k - 7; i <= (k < 8 ? k : 7); ++i) sum ^= a.bit[i] & b.bit[k - i];
        p[k] = sum;
    }
    return reduce(p);
}

Planes square(const Planes& a) {
    u64 p[15] = {};
    for (int i = 0; i < 8; ++i) p[2 * i] = a.bit[i];
    return reduce(p);
}

// The S-box: inverse in GF(2^8) as the 254th power (2 + 4 + 8 + ... + 128), then the affine map.
Planes substitute(const Planes& x) {
    const Planes x2 = square(x);
    const Planes x3 = multiply(x2, x);
    const Planes x12 = square(square(x3));
    const Planes x14 = multiply(x12, x2);
    const Planes x15 = multiply(x12, x3);
    const Planes x240 = square(square(square(square(x15))));
    const Planes inverse = multiply(x240, x14);
    Planes out;
    for (int j = 0; j < 8; ++j) {
        out.bit[j] = inverse.bit[j] ^ inverse.bit[(j + 4) & 7] ^ inverse.bit[(j + 5) & 7] ^ inverse.bit[(j + 6) & 7] ^
                     inverse.bit[(j + 7) & 7];
        if ((0x63 >> j) & 1) out.bit[j] = ~out.bit[j];
    }
    return out;
}

u64 rotate_right(u64 x, int by) { return by == 0 ? x : (x >> by) | (x << (64 - by)); }

void shift_rows(Planes& s) {
    constexpr u64 row = 0x000F000F000F000Full;
    for (u64& plane : s.bit) {
        u64 moved = 0;
        for (int r = 0; r < 4; ++r) moved |= rotate_right(plane & (row << (4 * r)), 16 * r);
        plane = moved;
    }
}

u64 next_row(u64 plane) {  // every byte replaced by the one a row below, cyclically within its column
    return ((plane >> 4) & 0x0FFF0FFF0FFF0FFFull) | ((plane << 12) & 0xF000F000F000F000ull);
}

void mix_columns(Planes& s) {
    u64 sum[8], pair[8];
    for (int j = 0; j < 8; ++j) {
        pair[j] = s.bit[j] ^ next_row(s.bit[j]);
        sum[j] = pair[j] ^ next_row(next_row(pair[j]));
    }
    for (int j = 0; j < 8; ++j) {
        u64 doubled = pair[(j + 7) & 7];
        if (j == 1 || j == 3 || j == 4) doubled ^= pair[7];
        s.bit[j] ^= sum[j] ^ doubled;
    }
}

void add_key(Planes& s, const Planes& key) {
    for (int j = 0; j < 8; ++j) s.bit[j] ^= key.bit[j];
}

Planes slice_repeated(const u8 block[16]) {
    u8 four[64];
    for (int b = 0; b < 4; ++b) std::memcpy(four + 16 * b, block, 16);
    return slice(four);
}

void encrypt(const AesKey& key, const u8* in, u8* out, i64 count) {
    Planes keys[11];
    for (int r = 0; r <= 10; ++r) keys[r] = slice_repeated(key.round[r]);
    for (i64 block = 0; block < count; block += 4) {
        const size_t bytes = static_cast<size_t>(count - block < 4 ? count - block : 4) * 16;
        u8 four[64] = {};
        std::memcpy(four, in + 16 * block, bytes);
        Planes s = slice(four);
        add_key(s, keys[0]);
        for (int r = 1; r <= 10; ++r) {
            s = substitute(s);
            shift_rows(s);
            if (r < 10) mix_columns(s);
            add_key(s, keys[r]);
        }
        unslice(s, four);
        std::memcpy(out + 16 * block, four, bytes);
    }
}

void store_counter(u64 counter, u8 block[16]) {  // big-endian, as in every CTR implementation
    std::memset(block, 0, 8);
    for (int i = 0; i < 8; ++i) block[15 - i] = static_cast<u8>(counter >> (8 * i));
}

void ctr(const AesKey& key, u64 first, u64* out, i64 words, u64 mask) {
    constexpr i64 kBlocks = 32;
    u8 buffer[16 * kBlocks];
    for (i64 done = 0; done < words; done += 2 * kBlocks, first += kBlocks) {
        for (i64 i = 0; i < kBlocks; ++i) store_counter(first + static_cast<u64>(i), buffer + 16 * i);
        encrypt(key, buffer, buffer, kBlocks);
        const i64 n = words - done < 2 * kBlocks ? words - done : 2 * kBlocks;
        std::memcpy(out + done, buffer, static_cast<size_t>(8 * n));
        for (i64 i = 0; i < n; ++i) out[done + i] &= mask;
    }
}

void mmo(const AesKey& key, const Block* in, Block* out, i64 count) {
    encrypt(key, reinterpret_cast<const u8*>(in), reinterpret_cast<u8*>(out), count);
    for (i64 i = 0; i < count; ++i) {
        out[i].lo ^= in[i].lo;
        out[i].hi ^= in[i].hi;
    }
}

}  // namespace

AesKey aes_expand(const u8 key[16]) {
    AesKey out;
    std::memcpy(out.round[0], key, 16);
    u8 constant = 1;
    for (int r = 1; r <= 10; ++r) {
        u8 bytes[64] = {};
        const u8* previous = out.round[r - 1];
        std::memcpy(bytes, previous + 12, 4);
        unslice(substitute(slice(bytes)), bytes);
        const u8 turned[4] = {static_cast<u8>(bytes[1] ^ constant), bytes[2], bytes[3], bytes[0]};
        for (int i = 0; i < 16; ++i) {
            const u8 left = i < 4 ? turned[i] : out.round[r][i - 4];
            out.round[r][i] = static_cast<u8>(previous[i] ^ left);
        }
        constant = static_cast<u8>((constant << 1) ^ (constant & 0x80 ? 0x1B : 0));
    }
    return out;
}

const AesOps& aes_portable() {
    static const AesOps ops = {ctr, mmo};
    return ops;
}

const AesOps& aes_ops() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return aes_avx512();
    if (simd_level() == Simd::avx2) return aes_avx2();
#endif
    return aes_portable();
}

}  // namespace autorep
