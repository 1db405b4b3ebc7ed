// Packing and bit planes with AVX2: two words a 16-byte lane, moved to their place by a byte permutation and a shift.
#include "bits.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

// Word k of eight starts at bit k * bits: in byte start(k), at bit shift(k) of it. Lane j holds words 2j and 2j + 1.
struct Places {
    int bits;
    int start(int k) const { return k * bits / 8; }
    int shift(int k) const { return k * bits % 8; }
    int gap(int lane) const { return start(2 * lane + 1) - start(2 * lane); }

    // Every word lies within eight bytes, and no byte holds parts of three words.
    bool fit() const {
        for (int k = 0; k < 8; ++k)
            if (shift(k) + bits > 64) return false;
        return bits >= 8;
    }
};

__m256i all(u64 value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
__m256i load_lanes(const void* low, const void* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(low))),
                                   _mm_loadu_si128(static_cast<const __m128i*>(high)), 1);
}
void store_lanes(void* low, void* high, __m256i x) {
    _mm_storeu_si128(static_cast<__m128i*>(low), _mm256_castsi256_si128(x));
    _mm_storeu_si128(static_cast<__m128i*>(high), _mm256_extracti128_si256(x, 1));
}

// Permutations and shifts of eight words, as two registers of two lanes.
struct Table {
    alignas(32) u8 spread[64], joined[64], carried[64];
    alignas(32) u64 shift[8];

    void set(int bits) {
        const Places at{bits};
        for (int lane = 0; lane < 4; ++lane) {
            const int gap = at.gap(lane);
            for (int j = 0; j < 16; ++j) {
                spread[16 * lane + j] = static_cast<u8>(j < 8 ? j : gap + j - 8);
                joined[16 * lane + j] = static_cast<u8>(j < gap || j - gap > 7 ? 0x80 : 8 + j - gap);
                carried[16 * lane + j] = 0x80;
            }
            // The byte in which the previous lane ends may be the one in which this one starts, unless it is full.
            const int before = lane > 0 ? at.start(2 * lane) - at.start(2 * lane - 2) : 16;
            if (before < 16) carried[16 * lane] = static_cast<u8>(before);
        }
        for (int k = 0; k < 8; ++k) shift[k] = static_cast<u64>(at.shift(k));
    }
};

// Made once for every width: blocks of a stream are so short that making them anew would be felt.
const Table& table_of(int bits) {
    static const struct All {
        Table width[65];
        All() {
            for (int bits = 1; bits <= 64; ++bits) width[bits].set(bits);
        }
    } all;
    return all.width[bits];
}

constexpr i64 kBeyond = 16;  // bytes that a group may touch beyond its own: the last groups are left to plain code

template <bool Add>
i64 unpack_groups(const u8* in, i64 count, int bits, const u64* own, u64* out) {
    const Table& table = table_of(bits);
    const Places at{bits};
    const __m256i cut = all(low_mask(bits));
    const __m256i from[2] = {load(table.spread), load(table.spread + 32)}, right[2] = {load(table.shift), load(table.shift + 4)};
    const i64 start[4] = {0, at.start(2), at.start(4), at.start(6)}, bytes = ceil_div(count * bits, 8);
    i64 i = 0;
    for (; i + 8 <= count && i / 8 * bits + bits + kBeyond <= bytes; i += 8, in += bits)
        for (int half = 0; half < 2; ++half) {
            const __m256i lanes = load_lanes(in + start[2 * half], in + start[2 * half + 1]);
            __m256i x = _mm256_srlv_epi64(_mm256_shuffle_epi8(lanes, from[half]), right[half]);
            if constexpr (Add) x = _mm256_add_epi64(x, load(own + i + 4 * half));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 4 * half), _mm256_and_si256(x, cut));
        }
    return i;
}

void unpack(const u8* in, i64 count, int bits, const u64* own, u64* out) {
    if (bits == 64 && !own) {
        __builtin_memcpy(out, in, static_cast<size_t>(count) * 8);
        return;
    }
    i64 done = 0;
    if (Places{bits}.fit()) done = (own ? unpack_groups<true> : unpack_groups<false>)(in, count, bits, own, out);
    bit_ops_portable().unpack(in + done / 8 * bits, count - done, bits, own ? own + done : nullptr, out + done);
}

i64 pack_groups(const u64* x, i64 count, int bits, u8* out) {
    const Table& table = table_of(bits);
    const Places at{bits};
    const __m256i cut = all(low_mask(bits)), first = _mm256_set_epi64x(0, -1, 0, -1);
    const __m256i left[2] = {load(table.shift), load(table.shift + 4)};
    const __m256i joined[2] = {load(table.joined), load(table.joined + 32)};
    const __m256i carried[2] = {load(table.carried), load(table.carried + 32)};
    const i64 start[4] = {0, at.start(2), at.start(4), at.start(6)}, bytes = ceil_div(count * bits, 8);
    i64 i = 0;
    for (; i + 8 <= count && i / 8 * bits + bits + kBeyond <= bytes; i += 8, out += bits) {
        __m256i lanes[2];
        for (int half = 0; half < 2; ++half) {
            const __m256i moved = _mm256_sllv_epi64(_mm256_and_si256(load(x + i + 4 * half), cut), left[half]);
            lanes[half] = _mm256_or_si256(_mm256_and_si256(moved, first), _mm256_shuffle_epi8(moved, joined[half]));
        }
        const __m256i before[2] = {_mm256_permute2x128_si256(lanes[0], lanes[0], 0x08),   // nothing, lane 0
                                   _mm256_permute2x128_si256(lanes[0], lanes[1], 0x21)};  // lane 1, lane 2
        for (int half = 0; half < 2; ++half) {  // in order: a lane's end is overwritten by the next one
            lanes[half] = _mm256_or_si256(lanes[half], _mm256_shuffle_epi8(before[half], carried[half]));
            store_lanes(out + start[2 * half], out + start[2 * half + 1], lanes[half]);
        }
    }
    return i;
}

void pack(const u64* x, i64 count, int bits, u8* out) {
    const i64 done = Places{bits}.fit() ? pack_groups(x, count, bits, out) : 0;
    bit_ops_portable().pack(x + done, count - done, bits, out + done / 8 * bits);
}

// Eight registers of eight 16-bit units a lane: unit j of register i becomes unit i of register j.
void transpose_units(__m256i (&x)[8]) {
    __m256i two[8], four[8];
    for (int i = 0; i < 4; ++i) {
        two[2 * i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        two[2 * i + 1] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; ++k) {
            four[i + 2 * k] = _mm256_unpacklo_epi32(two[i + k], two[i + k + 2]);
            four[i + 2 * k + 1] = _mm256_unpackhi_epi32(two[i + k], two[i + k + 2]);
        }
    for (int k = 0; k < 4; ++k) {
        x[2 * k] = _mm256_unpacklo_epi64(four[k], four[k + 4]);
        x[2 * k + 1] = _mm256_unpackhi_epi64(four[k], four[k + 4]);
    }
}

// Two words a lane to eight units (byte b of both), and back.
__m256i to_units(__m256i x) {
    return _mm256_shuffle_epi8(
        x, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15)));
}
__m256i from_units(__m256i x) {
    return _mm256_shuffle_epi8(
        x, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
}

void to_planes(const u64* x, i64 count, i64 k, u64* planes, i64 stride) {
    if (count < 64) return bit_ops_portable().to_planes(x, count, k, planes, stride);
    u32 masks[2][64];
    for (int half = 0; half < 2; ++half) {
        __m256i rows[8];
        for (int i = 0; i < 8; ++i) rows[i] = to_units(load_lanes(x + 32 * half + 2 * i, x + 32 * half + 16 + 2 * i));
        transpose_units(rows);  // rows[b] now holds byte b of 32 words
        for (i64 b = 0; 8 * b < k; ++b) {
            __m256i row = rows[b];
            const i64 most = k < 8 * b + 8 ? k : 8 * b + 8;
            row = _mm256_sll_epi64(row, _mm_cvtsi64_si128(8 * b + 8 - most));  // the highest wanted bit to each byte's top
            for (i64 j = most - 1; j >= 8 * b; --j, row = _mm256_add_epi8(row, row))
                masks[half][j] = static_cast<u32>(_mm256_movemask_epi8(row));
        }
    }
    for (i64 j = 0; j < k; ++j) planes[j * stride] = masks[0][j] | u64(masks[1][j]) << 32;
}

void from_planes(const u64* planes, i64 stride, i64 k, i64 count, u64* x) {
    if (count < 64) return bit_ops_portable().from_planes(planes, stride, k, count, x);
    const __m256i own_byte = _mm256_setr_epi64x(0, 0x0101010101010101ll, 0x0202020202020202ll, 0x0303030303030303ll);
    const __m256i own_bit = all(0x8040201008040201ull);
    for (int half = 0; half < 2; ++half) {
        __m256i rows[8];
        for (i64 b = 0; b < 8; ++b) {
            rows[b] = _mm256_setzero_si256();
            for (i64 j = 8 * b; j < 8 * b + 8 && j < k; ++j) {
                const auto mask = static_cast<int>(planes[j * stride] >> (32 * half));
                const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(mask), own_byte), own_bit);
                const __m256i set = _mm256_cmpeq_epi8(bits, own_bit);
                rows[b] = _mm256_or_si256(rows[b], _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << (j & 7)))));
            }
        }
        transpose_units(rows);
        for (int i = 0; i < 8; ++i) store_lanes(x + 32 * half + 2 * i, x + 32 * half + 16 + 2 * i, from_units(rows[i]));
    }
}

}  // namespace

const BitOps& bit_ops_avx2() {
    static const BitOps ops = {pack, unpack, to_planes, from_planes};
    return ops;
}

}  // namespace autorep
#endif
