// Transforms in double precision with fused multiply-add: exact for primes below 2^49.
//
// A value is an integer of magnitude below 16 p < 2^53. x w - round(x w / p) p is computed without error from the
// product's rounded head and its exact tail, and lies within (-p, p); thirteen stages add at most p each.
#include "ntt_lanes.h"

#if AUTOREP_X86
#include <immintrin.h>

namespace autorep {
namespace {

struct Doubles {
    using V = __m256d;
    static constexpr i64 kLanes = kAvx2Lanes;
    static constexpr bool kEnters = true;
    V p, inverse_p;
    explicit Doubles(const NttTable& t)
        : p(_mm256_set1_pd(static_cast<double>(t.p))), inverse_p(_mm256_set1_pd(1.0 / static_cast<double>(t.p))) {}

    V load(const u64* x) const { return _mm256_loadu_pd(reinterpret_cast<const double*>(x)); }
    void store(u64* x, V v) const { _mm256_storeu_pd(reinterpret_cast<double*>(x), v); }
    V spread(u64 x) const { return _mm256_castsi256_pd(_mm256_set1_epi64x(static_cast<long long>(x))); }
    V magic() const { return _mm256_set1_pd(4503599627370496.0); }  // 2^52: its mantissa holds an integer as it is
    V enter(V x) const { return _mm256_sub_pd(_mm256_or_pd(x, magic()), magic()); }
    V leave(V x) const {
        const V r = centre(x);
        const V positive = _mm256_add_pd(r, _mm256_and_pd(_mm256_cmp_pd(r, _mm256_setzero_pd(), _CMP_LT_OQ), p));
        return _mm256_xor_pd(_mm256_add_pd(positive, magic()), magic());
    }
    V nearest(V x) const { return _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    V centre(V x) const { return _mm256_fnmadd_pd(nearest(_mm256_mul_pd(x, inverse_p)), p, x); }
    V times(V x, V w, V q) const {
        const V head = _mm256_mul_pd(x, w), multiple = nearest(_mm256_mul_pd(x, q));
        const V tail = _mm256_fmsub_pd(x, w, head);
        return _mm256_add_pd(_mm256_fnmadd_pd(multiple, p, head), tail);
    }
    V product(V x, V y) const {
        const V head = _mm256_mul_pd(x, y), multiple = nearest(_mm256_mul_pd(head, inverse_p));
        const V tail = _mm256_fmsub_pd(x, y, head);
        return _mm256_add_pd(_mm256_fnmadd_pd(multiple, p, head), tail);
    }
    void forward(V& x, V& y, V w, V q) const {
        const V v = times(y, w, q);
        y = _mm256_sub_pd(x, v);
        x = _mm256_add_pd(x, v);
    }
    void inverse(V& x, V& y, V w, V q) const {
        const V d = _mm256_sub_pd(x, y);
        x = centre(_mm256_add_pd(x, y));
        y = times(d, w, q);
    }
    void transpose(V (&r)[4]) const {
        const V a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
        const V c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
        r[0] = _mm256_permute2f128_pd(a, c, 0x20);
        r[1] = _mm256_permute2f128_pd(b, d, 0x20);
        r[2] = _mm256_permute2f128_pd(a, c, 0x31);
        r[3] = _mm256_permute2f128_pd(b, d, 0x31);
    }
};

// A factor of 49 bits is cut into two of 25, so that products are exact and many can be added before any reduction.
struct Halves {
    static constexpr i64 kLanes = kAvx2Lanes, kParts = 2, kColumns = 1;
    static constexpr i64 kTerms = 12;  // 24 products of at most 2^48 stay below 16 p, and below 2^53
    const Doubles a;
    double power[2], quotient[2];  // 2^25 and 2^50 modulo p, and divided by p
    explicit Halves(const NttTable& t) : a(t) {
        for (int i = 0; i < 2; ++i) {
            const u64 rest = (u64(1) << (i ? 50 : 25)) % t.p;
            power[i] = rest > t.p / 2 ? -static_cast<double>(t.p - rest) : static_cast<double>(rest);
            quotient[i] = power[i] / static_cast<double>(t.p);
        }
    }

    void put(u64* to, const u64* from) const {
        const __m256d x = a.enter(a.load(from)), unit = _mm256_set1_pd(33554432.0);
        const __m256d upper = a.nearest(_mm256_mul_pd(x, _mm256_set1_pd(1 / 33554432.0)));
        a.store(to, _mm256_fnmadd_pd(upper, unit, x));
        a.store(to + kLanes, upper);
    }
    template <i64 R, i64 C>
    void products(const u64* w, const u64* x, i64 terms, u64* out, i64 row, i64) const {
        static_assert(C == 1, "registers for one column");
        __m256d total[R];
        for (i64 from = 0; from < terms; from += kTerms) {
            __m256d sum[R][4];
            for (auto& of_row : sum)
                for (auto& s : of_row) s = _mm256_setzero_pd();
            const i64 end = terms - from < kTerms ? terms : from + kTerms;
            for (i64 j = from; j < end; ++j) {
                const __m256d x_low = a.load(x + 2 * j * kLanes), x_high = a.load(x + (2 * j + 1) * kLanes);
                for (i64 r = 0; r < R; ++r) {
                    const u64* at = w + 2 * (r * terms + j) * kLanes;
                    const __m256d low = a.load(at), high = a.load(at + kLanes);
                    sum[r][0] = _mm256_fmadd_pd(low, x_low, sum[r][0]);
                    sum[r][1] = _mm256_fmadd_pd(low, x_high, sum[r][1]);
                    sum[r][2] = _mm256_fmadd_pd(high, x_low, sum[r][2]);
                    sum[r][3] = _mm256_fmadd_pd(high, x_high, sum[r][3]);
                }
            }
            for (i64 r = 0; r < R; ++r) {
                const __m256d middle = scaled(_mm256_add_pd(sum[r][1], sum[r][2]), 0), upper = scaled(sum[r][3], 1);
                const __m256d folded = _mm256_add_pd(a.centre(sum[r][0]), _mm256_add_pd(middle, upper));
                total[r] = from ? a.centre(_mm256_add_pd(total[r], folded)) : folded;
            }
        }
        for (i64 r = 0; r < R; ++r) a.store(out + r * row, a.leave(total[r]));
    }
    void one(const u64* w, const u64* x, u64* out) const {
        a.store(out, a.leave(a.product(a.enter(a.load(w)), a.enter(a.load(x)))));
    }

private:
    __m256d scaled(__m256d x, int i) const {
        return a.times(x, _mm256_set1_pd(power[i]), _mm256_set1_pd(quotient[i]));
    }
};

}  // namespace

const NttOps& ntt_avx2() {
    static const NttOps ops = {Transform<Doubles>::forward, Transform<Doubles>::inverse, Dot<Halves>::run};
    return ops;
}

}  // namespace autorep
#endif
