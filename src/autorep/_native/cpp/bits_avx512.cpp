// Packing and bit planes with byte permutations: eight words at a time fill exactly `bits` bytes.
#include "bits.h"

#if AUTOREP_X86
#include "avx512.h"

namespace autorep {
namespace {

// Word k of eight starts at bit k * bits: in byte start(k), at bit shift(k) of it. It reaches into a ninth byte
// when shift + bits > 64, which only happens above 57 bits.
struct Places {
    int bits;
    int start(int k) const { return k * bits / 8; }
    int shift(int k) const { return k * bits % 8; }
};

struct UnpackTable {
    alignas(64) u8 from[64], ninth[64];
    alignas(64) u64 right[8], left[8];

    void set(int bits) {
        const Places at{bits};
        for (int k = 0; k < 8; ++k) {
            for (int j = 0; j < 8; ++j) from[8 * k + j] = static_cast<u8>(at.start(k) + j);
            for (int j = 0; j < 8; ++j) ninth[8 * k + j] = static_cast<u8>((at.start(k) + 8) % 64);
            right[k] = static_cast<u64>(at.shift(k));
            left[k] = static_cast<u64>(64 - at.shift(k));  // 64 shifts everything out
        }
    }
};

// Where each byte of the packed eight words comes from: neighbours share a byte, words two apart never do.
struct PackTable {
    alignas(64) u8 from[2][64] = {}, ninth[64] = {};
    __mmask64 used[2] = {0, 0}, ninth_used = 0;
    alignas(64) u64 left[8], right[8];

    void set(int bits) {
        const Places at{bits};
        for (int k = 0; k < 8; ++k) {
            const int end = (at.shift(k) + bits + 7) / 8;  // bytes that the word touches
            for (int j = 0; j < end && j < 8; ++j) {
                from[k & 1][at.start(k) + j] = static_cast<u8>(8 * k + j);
                used[k & 1] |= __mmask64(1) << (at.start(k) + j);
            }
            if (end > 8) {
                ninth[at.start(k) + 8] = static_cast<u8>(8 * k);
                ninth_used |= __mmask64(1) << (at.start(k) + 8);
            }
            left[k] = static_cast<u64>(at.shift(k));
            right[k] = static_cast<u64>(64 - at.shift(k));
        }
    }
};

struct Tables {
    UnpackTable unpack;
    PackTable pack;
};

// Made once for every width: blocks of a stream are so short that making them anew would be felt.
const Tables& tables_of(int bits) {
    static const struct All {
        Tables width[65];
        All() {
            for (int bits = 1; bits <= 64; ++bits) {
                width[bits].unpack.set(bits);
                width[bits].pack.set(bits);
            }
        }
    } all;
    return all.width[bits];
}

template <bool Ninth, bool Add>
void unpack_words(const u8* in, i64 count, int bits, const u64* own, u64* out) {
    const UnpackTable& table = tables_of(bits).unpack;
    const __m512i from = _mm512_load_si512(table.from), ninth = _mm512_load_si512(table.ninth);
    const __m512i right = _mm512_load_si512(table.right), left = _mm512_load_si512(table.left);
    const __m512i cut = _mm512_set1_epi64(static_cast<long long>(low_mask(bits)));
    for (i64 i = 0; i < count; i += 8, in += bits) {
        const i64 n = count - i < 8 ? count - i : 8;
        const __m512i bytes = _mm512_maskz_loadu_epi8(first_bytes(ceil_div(n * bits, 8)), in);
        __m512i x = _mm512_srlv_epi64(_mm512_permutexvar_epi8(from, bytes), right);
        if constexpr (Ninth) x = _mm512_or_si512(x, _mm512_sllv_epi64(_mm512_permutexvar_epi8(ninth, bytes), left));
        if constexpr (Add) x = _mm512_add_epi64(x, _mm512_maskz_loadu_epi64(first_words(n), own + i));
        _mm512_mask_storeu_epi64(out + i, first_words(n), _mm512_and_si512(x, cut));
    }
}

void unpack(const u8* in, i64 count, int bits, const u64* own, u64* out) {
    if (bits == 64 && !own) {
        __builtin_memcpy(out, in, static_cast<size_t>(count) * 8);
        return;
    }
    const bool ninth = bits > 57;
    if (own) (ninth ? unpack_words<true, true> : unpack_words<false, true>)(in, count, bits, own, out);
    else (ninth ? unpack_words<true, false> : unpack_words<false, false>)(in, count, bits, own, out);
}

template <bool Ninth>
void pack_words(const u64* x, i64 count, int bits, u8* out) {
    const PackTable& table = tables_of(bits).pack;
    const __m512i even = _mm512_load_si512(table.from[0]), odd = _mm512_load_si512(table.from[1]);
    const __m512i ninth = _mm512_load_si512(table.ninth);
    const __m512i left = _mm512_load_si512(table.left), right = _mm512_load_si512(table.right);
    const __m512i cut = _mm512_set1_epi64(static_cast<long long>(low_mask(bits)));
    for (i64 i = 0; i < count; i += 8, out += bits) {
        const i64 n = count - i < 8 ? count - i : 8;
        const __m512i value = _mm512_and_si512(_mm512_maskz_loadu_epi64(first_words(n), x + i), cut);
        const __m512i moved = _mm512_sllv_epi64(value, left);
        __m512i bytes = _mm512_or_si512(_mm512_maskz_permutexvar_epi8(table.used[0], even, moved),
                                        _mm512_maskz_permutexvar_epi8(table.used[1], odd, moved));
        if constexpr (Ninth)
            bytes = _mm512_or_si512(bytes, _mm512_maskz_permutexvar_epi8(table.ninth_used, ninth,
                                                                         _mm512_srlv_epi64(value, right)));
        _mm512_mask_storeu_epi8(out, first_bytes(ceil_div(n * bits, 8)), bytes);
    }
}

void pack(const u64* x, i64 count, int bits, u8* out) {
    if (bits < 8) bit_ops_portable().pack(x, count, bits, out);  // more than two words meet in one byte
    else if (bits > 57) pack_words<true>(x, count, bits, out);
    else pack_words<false>(x, count, bits, out);
}

struct TransposeTable {
    alignas(64) u8 from[64];
    constexpr TransposeTable() : from() {
        for (int i = 0; i < 64; ++i) from[i] = static_cast<u8>(8 * (i % 8) + i / 8);
    }
};
constexpr TransposeTable kTranspose;

// Byte b of word w of a vector moves to byte w of word b.
__m512i transpose_bytes(__m512i x) { return _mm512_permutexvar_epi8(_mm512_load_si512(kTranspose.from), x); }

void to_planes(const u64* x, i64 count, i64 k, u64* planes, i64 stride) {
    __m512i rows[8];
    for (int i = 0; i < 8; ++i)
        rows[i] = transpose_bytes(_mm512_maskz_loadu_epi64(first_words(count - 8 * i), x + 8 * i));
    transpose_words(rows);  // rows[b] now holds byte b of all 64 words
    for (i64 b = 0; 8 * b < k; ++b) {
        __m512i row = rows[b];
        const i64 least = 8 * b, most = k < least + 8 ? k : least + 8;
        row = _mm512_sll_epi64(row, _mm_cvtsi64_si128(least + 8 - most));  // the highest wanted bit to each byte's top
        for (i64 j = most - 1; j >= least; --j, row = _mm512_add_epi8(row, row)) planes[j * stride] = _mm512_movepi8_mask(row);
    }
}

void from_planes(const u64* planes, i64 stride, i64 k, i64 count, u64* x) {
    __m512i rows[8];
    for (i64 b = 0; b < 8; ++b) {
        rows[b] = _mm512_setzero_si512();
        for (i64 j = 8 * b; j < 8 * b + 8 && j < k; ++j)
            rows[b] = _mm512_or_si512(rows[b], _mm512_maskz_set1_epi8(planes[j * stride], static_cast<char>(1 << (j & 7))));
    }
    transpose_words(rows);
    for (int i = 0; i < 8; ++i)
        _mm512_mask_storeu_epi64(x + 8 * i, first_words(count - 8 * i), transpose_bytes(rows[i]));
}

}  // namespace

const BitOps& bit_ops_avx512() {
    static const BitOps ops = {pack, unpack, to_planes, from_planes};
    return ops;
}

}  // namespace autorep
#endif
