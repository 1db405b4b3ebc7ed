// Transforms with 52-bit multiply-add (IFMA): Shoup's products with a 52-bit quotient.
#include "ntt_lanes.h"

#if AUTOREP_X86
#include "avx512.h"

namespace autorep {
namespace {

struct Words52 {
    using V = __m512i;
    static constexpr i64 kLanes = kAvx512Lanes;
    static constexpr bool kEnters = false;
    V p, twice, cut, zero;
    explicit Words52(const NttTable& t)
        : p(_mm512_set1_epi64(static_cast<long long>(t.p))), twice(_mm512_add_epi64(p, p)),
          cut(_mm512_set1_epi64((1ll << 52) - 1)), zero(_mm512_setzero_si512()) {}

    V load(const u64* x) const { return _mm512_loadu_si512(x); }
    void store(u64* x, V v) const { _mm512_storeu_si512(x, v); }
    V spread(u64 x) const { return _mm512_set1_epi64(static_cast<long long>(x)); }
    V enter(V x) const { return x; }
    V once(V x, V by) const { return _mm512_min_epu64(x, _mm512_sub_epi64(x, by)); }  // x below 2 * by
    V leave(V x) const { return once(once(x, twice), p); }
    V times(V x, V w, V q) const {  // x below 2^52; below 2p
        const V multiple = _mm512_madd52hi_epu64(zero, x, q);
        const V head = _mm512_madd52lo_epu64(zero, x, w);
        return _mm512_and_si512(_mm512_sub_epi64(head, _mm512_madd52lo_epu64(zero, multiple, p)), cut);
    }
    void forward(V& x, V& y, V w, V q) const {  // below 4p
        const V u = once(x, twice), v = times(y, w, q);
        x = _mm512_add_epi64(u, v);
        y = _mm512_add_epi64(_mm512_sub_epi64(u, v), twice);
    }
    void inverse(V& x, V& y, V w, V q) const {  // below 2p
        const V d = _mm512_add_epi64(_mm512_sub_epi64(x, y), twice);
        x = once(_mm512_add_epi64(x, y), twice);
        y = times(d, w, q);
    }
    void transpose(V (&r)[8]) const { transpose_words(r); }
};

// Products are added as low and high halves of 52 bits; 32 terms keep both below 2^64 and the high one below 2^52.
constexpr i64 kTerms = 32, kPair = 2;

// Rows and columns are taken two at a time where there are two, so that each load serves two products.
template <i64 Rows, i64 Columns>
void dot_block(const Words52& a, const NttTable& t, const u64* w, const u64* x, i64 terms, i64 columns, u64* out) {
    constexpr i64 kVectors = 4 / Rows;
    const __m512i power = a.spread((u64(1) << 52) % t.p), unit = a.spread((u64(1) << 52) / t.p);
    const __m512i power_q = a.spread(static_cast<u64>((static_cast<unsigned __int128>((u64(1) << 52) % t.p) << 52) / t.p));
    const __m512i one = a.spread(1);
    for (i64 i = 0; i < t.n; i += kVectors * kAvx512Lanes) {
        __m512i total[Rows][Columns][kVectors];
        for (i64 from = 0; from < terms; from += kTerms) {
            __m512i lo[Rows][Columns][kVectors], hi[Rows][Columns][kVectors];
            for (i64 r = 0; r < Rows; ++r)
                for (i64 c = 0; c < Columns; ++c)
                    for (i64 k = 0; k < kVectors; ++k) lo[r][c][k] = hi[r][c][k] = a.zero;
            const i64 end = terms - from < kTerms ? terms : from + kTerms;
            for (i64 j = from; j < end; ++j)
                for (i64 k = 0; k < kVectors; ++k) {
                    __m512i weight[Rows];
                    for (i64 r = 0; r < Rows; ++r) weight[r] = a.load(w + (r * terms + j) * t.n + i + k * kAvx512Lanes);
                    for (i64 c = 0; c < Columns; ++c) {
                        const __m512i value = a.load(x + (j * columns + c) * t.n + i + k * kAvx512Lanes);
                        for (i64 r = 0; r < Rows; ++r) {
                            lo[r][c][k] = _mm512_madd52lo_epu64(lo[r][c][k], weight[r], value);
                            hi[r][c][k] = _mm512_madd52hi_epu64(hi[r][c][k], weight[r], value);
                        }
                    }
                }
            for (i64 r = 0; r < Rows; ++r)
                for (i64 c = 0; c < Columns; ++c)
                    for (i64 k = 0; k < kVectors; ++k) {
                        const __m512i upper = _mm512_add_epi64(hi[r][c][k], _mm512_srli_epi64(lo[r][c][k], 52));
                        const __m512i lower = a.times(_mm512_and_si512(lo[r][c][k], a.cut), one, unit);
                        const __m512i sum = a.leave(_mm512_add_epi64(a.times(upper, power, power_q), lower));
                        total[r][c][k] = from ? a.once(_mm512_add_epi64(total[r][c][k], sum), a.p) : sum;
                    }
        }
        for (i64 r = 0; r < Rows; ++r)
            for (i64 c = 0; c < Columns; ++c)
                for (i64 k = 0; k < kVectors; ++k)
                    a.store(out + (r * columns + c) * t.n + i + k * kAvx512Lanes, total[r][c][k]);
    }
}

template <i64 Rows>
void dot_rows(const Words52& a, const NttTable& t, const u64* w, const u64* x, i64 terms, i64 columns, u64* out) {
    i64 c = 0;
    for (; c + kPair <= columns; c += kPair)
        dot_block<Rows, kPair>(a, t, w, x + c * t.n, terms, columns, out + c * t.n);
    if (c < columns) dot_block<Rows, 1>(a, t, w, x + c * t.n, terms, columns, out + c * t.n);
}

void dot(const NttTable& t, const u64* w, const u64* x, i64 rows, i64 terms, i64 columns, u64* out) {
    const Words52 a(t);
    i64 r = 0;
    for (; r + kPair <= rows; r += kPair)
        dot_rows<kPair>(a, t, w + r * terms * t.n, x, terms, columns, out + r * columns * t.n);
    if (r < rows) dot_rows<1>(a, t, w + r * terms * t.n, x, terms, columns, out + r * columns * t.n);
}

}  // namespace

const NttOps& ntt_avx512() {
    static const NttOps ops = {Transform<Words52>::forward, Transform<Words52>::inverse, dot};
    return ops;
}

}  // namespace autorep
#endif
