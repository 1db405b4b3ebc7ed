// Portable AES-128: bit-sliced, so neither a branch nor an address depends on key or data.
//
// Sixteen blocks at a time; plane j holds bit j of each byte. A plane has four words of four blocks each: a byte in
// row r, column c of block b of a word sits at bit 16c + 4r + b, so rows are nibbles and columns 16-bit groups.
#include "aes.h"

#include <cstring>

namespace autorep {
namespace {

constexpr int kWords = 4;             // words of a plane
constexpr i64 kFlight = 4 * kWords;   // blocks in flight

#if defined(__GNUC__)
typedef u64 Plane __attribute__((vector_size(8 * kWords)));
#else
struct Plane {
    u64 word[kWords];
    u64& operator[](int i) { return word[i]; }
    u64 operator[](int i) const { return word[i]; }
};
template <class Op>
Plane each(Plane a, Plane b, Op&& op) {
    for (int i = 0; i < kWords; ++i) a.word[i] = op(a.word[i], b.word[i]);
    return a;
}
inline Plane operator^(Plane a, Plane b) { return each(a, b, [](u64 x, u64 y) { return x ^ y; }); }
inline Plane operator&(Plane a, Plane b) { return each(a, b, [](u64 x, u64 y) { return x & y; }); }
inline Plane operator|(Plane a, Plane b) { return each(a, b, [](u64 x, u64 y) { return x | y; }); }
inline Plane operator&(Plane a, u64 mask) { return each(a, a, [mask](u64 x, u64) { return x & mask; }); }
inline Plane operator<<(Plane a, int by) { return each(a, a, [by](u64 x, u64) { return x << by; }); }
inline Plane operator>>(Plane a, int by) { return each(a, a, [by](u64 x, u64) { return x >> by; }); }
inline Plane operator~(Plane a) { return each(a, a, [](u64 x, u64) { return ~x; }); }
#endif

struct Planes {
    Plane bit[8];
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

Planes slice(const u8 (&blocks)[16 * kFlight]) {
    Planes planes = {};
    for (int w = 0; w < kWords; ++w)
        for (int group = 0; group < 8; ++group) {  // eight neighbouring positions: two bytes of each of four blocks
            u64 word = 0;
            for (int k = 0; k < 8; ++k) word |= u64(blocks[64 * w + 16 * (k & 3) + 2 * group + (k >> 2)]) << (8 * k);
            word = transpose8(word);
            for (int j = 0; j < 8; ++j) planes.bit[j][w] |= ((word >> (8 * j)) & 255) << (8 * group);
        }
    return planes;
}

void unslice(const Planes& planes, u8 (&blocks)[16 * kFlight]) {
    for (int w = 0; w < kWords; ++w)
        for (int group = 0; group < 8; ++group) {
            u64 word = 0;
            for (int j = 0; j < 8; ++j) word |= ((planes.bit[j][w] >> (8 * group)) & 255) << (8 * j);
            word = transpose8(word);
            for (int k = 0; k < 8; ++k)
                blocks[64 * w + 16 * (k & 3) + 2 * group + (k >> 2)] = static_cast<u8>(word >> (8 * k));
        }
}

// The S-box inverts in GF(2^8), seen as pairs (high, low) over GF(16) = GF(2)[z]/(z^4 + z + 1) with y^2 = y + z^3.
struct Nibble {
    Plane bit[4];
};

Nibble operator^(const Nibble& a, const Nibble& b) {
    return {{a.bit[0] ^ b.bit[0], a.bit[1] ^ b.bit[1], a.bit[2] ^ b.bit[2], a.bit[3] ^ b.bit[3]}};
}

Nibble multiply(const Nibble& a, const Nibble& b) {
    const Plane p0 = a.bit[0] & b.bit[0];
    const Plane p1 = (a.bit[0] & b.bit[1]) ^ (a.bit[1] & b.bit[0]);
    const Plane p2 = (a.bit[0] & b.bit[2]) ^ (a.bit[1] & b.bit[1]) ^ (a.bit[2] & b.bit[0]);
    const Plane p3 = (a.bit[0] & b.bit[3]) ^ (a.bit[1] & b.bit[2]) ^ (a.bit[2] & b.bit[1]) ^ (a.bit[3] & b.bit[0]);
    const Plane p4 = (a.bit[1] & b.bit[3]) ^ (a.bit[2] & b.bit[2]) ^ (a.bit[3] & b.bit[1]);
    const Plane p5 = (a.bit[2] & b.bit[3]) ^ (a.bit[3] & b.bit[2]);
    const Plane p6 = a.bit[3] & b.bit[3];
    return {{p0 ^ p4, p1 ^ p4 ^ p5, p2 ^ p5 ^ p6, p3 ^ p6}};  // z^4 = z + 1
}

Nibble square(const Nibble& a) { return {{a.bit[0] ^ a.bit[2], a.bit[2], a.bit[1] ^ a.bit[3], a.bit[3]}}; }

Nibble times_z3(const Nibble& a) {
    return {{a.bit[1], a.bit[1] ^ a.bit[2], a.bit[2] ^ a.bit[3], a.bit[0] ^ a.bit[3]}};
}

// Row i names the input bits that sum to output bit i: into the pairs, and back followed by the affine map.
constexpr u8 kToPairs[8] = {0xa1, 0x04, 0xfc, 0x18, 0x70, 0xd2, 0xac, 0xa0};
constexpr u8 kFromPairs[8] = {0x45, 0x3f, 0x69, 0x25, 0x3b, 0xee, 0xd0, 0x06};

template <int Row>
Plane sum_of(const u8 (&rows)[8], const Planes& x) {
    Plane sum = {};
    for (int j = 0; j < 8; ++j)
        if ((rows[Row] >> j) & 1) sum = sum ^ x.bit[j];
    return sum;
}

Planes linear(const u8 (&rows)[8], const Planes& x) {
    return {{sum_of<0>(rows, x), sum_of<1>(rows, x), sum_of<2>(rows, x), sum_of<3>(rows, x), sum_of<4>(rows, x),
             sum_of<5>(rows, x), sum_of<6>(rows, x), sum_of<7>(rows, x)}};
}

Planes substitute(const Planes& x) {
    const Planes t = linear(kToPairs, x);
    const Nibble low = {{t.bit[0], t.bit[1], t.bit[2], t.bit[3]}}, high = {{t.bit[4], t.bit[5], t.bit[6], t.bit[7]}};
    const Nibble both = high ^ low;
    const Nibble norm = times_z3(square(high)) ^ multiply(low, both);
    const Nibble norm2 = square(norm), norm4 = square(norm2), norm8 = square(norm4);
    const Nibble inverse = multiply(multiply(norm2, norm4), norm8);  // the 14th power
    const Nibble h = multiply(high, inverse), l = multiply(both, inverse);
    Planes out = linear(kFromPairs, {{l.bit[0], l.bit[1], l.bit[2], l.bit[3], h.bit[0], h.bit[1], h.bit[2], h.bit[3]}});
    for (int j = 0; j < 8; ++j)
        if ((0x63 >> j) & 1) out.bit[j] = ~out.bit[j];
    return out;
}

void shift_rows(Planes& s) {
    constexpr u64 row = 0x000F000F000F000Full;
    for (Plane& plane : s.bit) {
        Plane moved = plane & row;
        for (int r = 1; r < 4; ++r) {
            const Plane part = plane & (row << (4 * r));
            moved = moved | (part >> (16 * r)) | (part << (64 - 16 * r));
        }
        plane = moved;
    }
}

Plane next_row(Plane plane) {  // every byte replaced by the one a row below, cyclically within its column
    return ((plane >> 4) & 0x0FFF0FFF0FFF0FFFull) | ((plane << 12) & 0xF000F000F000F000ull);
}

void mix_columns(Planes& s) {
    Plane sum[8], pair[8];
    for (int j = 0; j < 8; ++j) {
        pair[j] = s.bit[j] ^ next_row(s.bit[j]);
        sum[j] = pair[j] ^ next_row(next_row(pair[j]));
    }
    for (int j = 0; j < 8; ++j) {
        Plane doubled = pair[(j + 7) & 7];
        if (j == 1 || j == 3 || j == 4) doubled = doubled ^ pair[7];
        s.bit[j] = s.bit[j] ^ sum[j] ^ doubled;
    }
}

void add_key(Planes& s, const Planes& key) {
    for (int j = 0; j < 8; ++j) s.bit[j] = s.bit[j] ^ key.bit[j];
}

Planes slice_repeated(const u8 block[16]) {
    u8 blocks[16 * kFlight];
    for (int b = 0; b < kFlight; ++b) std::memcpy(blocks + 16 * b, block, 16);
    return slice(blocks);
}

void encrypt(const AesKey& key, const u8* in, u8* out, i64 count) {
    Planes keys[11];
    for (int r = 0; r <= 10; ++r) keys[r] = slice_repeated(key.round[r]);
    for (i64 block = 0; block < count; block += kFlight) {
        const size_t bytes = static_cast<size_t>(count - block < kFlight ? count - block : kFlight) * 16;
        u8 blocks[16 * kFlight] = {};
        std::memcpy(blocks, in + 16 * block, bytes);
        Planes s = slice(blocks);
        add_key(s, keys[0]);
        for (int r = 1; r <= 10; ++r) {
            s = substitute(s);
            shift_rows(s);
            if (r < 10) mix_columns(s);
            add_key(s, keys[r]);
        }
        unslice(s, blocks);
        std::memcpy(out + 16 * block, blocks, bytes);
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

AesKey expand(const u8 key[16]) {
    AesKey out;
    std::memcpy(out.round[0], key, 16);
    u8 constant = 1;
    for (int r = 1; r <= 10; ++r) {
        u8 bytes[16 * kFlight] = {};
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

}  // namespace

const AesOps& aes_portable() {
    static const AesOps ops = {expand, ctr, mmo};
    return ops;
}

const AesOps& aes_ops() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return aes_avx512();
    if (simd_level() == Simd::avx2) return vector_aes() ? aes_vaes() : aes_avx2();
#elif AUTOREP_ARM
    if (simd_level() == Simd::neon) return aes_neon();
#endif
    return aes_portable();
}

}  // namespace autorep
