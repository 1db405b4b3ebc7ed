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

// Each product is below p in magnitude; eight are added between reductions.
template <i64 Rows>
void dot_rows(const Doubles& a, const NttTable& t, const u64* w, const u64* x, i64 terms, i64 columns, u64* out) {
    for (i64 i = 0; i < t.n; i += kAvx2Lanes)
        for (i64 c = 0; c < columns; ++c) {
            __m256d sum[Rows];
            for (auto& s : sum) s = _mm256_setzero_pd();
            for (i64 j = 0; j < terms; ++j) {
                const __m256d value = a.enter(a.load(x + (j * columns + c) * t.n + i));
                for (i64 r = 0; r < Rows; ++r) {
                    const __m256d weight = a.enter(a.load(w + (r * terms + j) * t.n + i));
                    sum[r] = _mm256_add_pd(sum[r], a.product(weight, value));
                    if (j % 8 == 7) sum[r] = a.centre(sum[r]);
                }
            }
            for (i64 r = 0; r < Rows; ++r) a.store(out + (r * columns + c) * t.n + i, a.leave(sum[r]));
        }
}

void dot(const NttTable& t, const u64* w, const u64* x, i64 rows, i64 terms, i64 columns, u64* out) {
    const Doubles a(t);
    i64 r = 0;
    for (; r + 2 <= rows; r += 2) dot_rows<2>(a, t, w + r * terms * t.n, x, terms, columns, out + r * columns * t.n);
    if (r < rows) dot_rows<1>(a, t, w + r * terms * t.n, x, terms, columns, out + r * columns * t.n);
}

}  // namespace

const NttOps& ntt_avx2() {
    static const NttOps ops = {Transform<Doubles>::forward, Transform<Doubles>::inverse, dot};
    return ops;
}

}  // namespace autorep
#endif
