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
struct Halves52 {
    static constexpr i64 kLanes = kAvx512Lanes, kParts = 1, kColumns = 2, kTerms = 32;
    const Words52 a;
    const __m512i power, power_quotient, one_, unit;  // 2^52 and 1 as factors
    explicit Halves52(const NttTable& t)
        : a(t), power(a.spread((u64(1) << 52) % t.p)),
          power_quotient(a.spread(static_cast<u64>((static_cast<unsigned __int128>((u64(1) << 52) % t.p) << 52) / t.p))),
          one_(a.spread(1)), unit(a.spread((u64(1) << 52) / t.p)) {}

    void put(u64* to, const u64* from) const { a.store(to, a.load(from)); }
    template <i64 R, i64 C>
    void products(const u64* w, const u64* x, i64 terms, u64* out, i64 row, i64 column) const {
        __m512i total[R][C];
        for (i64 from = 0; from < terms; from += kTerms) {
            __m512i lo[R][C], hi[R][C];
            for (i64 r = 0; r < R; ++r)
                for (i64 c = 0; c < C; ++c) lo[r][c] = hi[r][c] = a.zero;
            const i64 end = terms - from < kTerms ? terms : from + kTerms;
            for (i64 j = from; j < end; ++j) {
                __m512i weight[R];
                for (i64 r = 0; r < R; ++r) weight[r] = a.load(w + (r * terms + j) * kLanes);
                for (i64 c = 0; c < C; ++c) {
                    const __m512i value = a.load(x + (c * terms + j) * kLanes);
                    for (i64 r = 0; r < R; ++r) {
                        lo[r][c] = _mm512_madd52lo_epu64(lo[r][c], weight[r], value);
                        hi[r][c] = _mm512_madd52hi_epu64(hi[r][c], weight[r], value);
                    }
                }
            }
            for (i64 r = 0; r < R; ++r)
                for (i64 c = 0; c < C; ++c) {
                    const __m512i sum = folded(lo[r][c], hi[r][c]);
                    total[r][c] = from ? a.once(_mm512_add_epi64(total[r][c], sum), a.p) : sum;
                }
        }
        for (i64 r = 0; r < R; ++r)
            for (i64 c = 0; c < C; ++c) a.store(out + r * row + c * column, total[r][c]);
    }
    void one(const u64* w, const u64* x, u64* out) const {
        const __m512i weight = a.load(w), value = a.load(x);
        a.store(out, folded(_mm512_madd52lo_epu64(a.zero, weight, value), _mm512_madd52hi_epu64(a.zero, weight, value)));
    }

private:
    __m512i folded(__m512i lo, __m512i hi) const {
        const __m512i upper = _mm512_add_epi64(hi, _mm512_srli_epi64(lo, 52));
        const __m512i lower = a.times(_mm512_and_si512(lo, a.cut), one_, unit);
        return a.leave(_mm512_add_epi64(a.times(upper, power, power_quotient), lower));
    }
};

}  // namespace

const NttOps& ntt_avx512() {
    static const NttOps ops = {Transform<Words52>::forward, Transform<Words52>::inverse, Dot<Halves52>::run};
    return ops;
}

}  // namespace autorep
#endif
