// The quadratics eight elements at a time.
#include "quadratic.h"

#if AUTOREP_X86
#include "avx512.h"
#include "quadratic_loops.h"

namespace autorep {
namespace {

void share(const QuadraticRun& run) {
    const auto all = [](u64 value) { return _mm512_set1_epi64(static_cast<long long>(value)); };
    const __m512i a = all(run.a), b = all(run.b), c = all(run.c);
    const __m512i offset = all(u64(1) << (run.bits - 2 - run.shift)), top = all(u64(1) << (run.bits - 1));
    const __m128i shift = _mm_cvtsi32_si128(run.shift);
    for (i64 i = 0; i < run.count; i += 8) {
        const __mmask8 here = first_words(run.count - i);
        const auto load = [&](const u64* from) { return _mm512_maskz_loadu_epi64(here, from + i); };
        const i64* at = run.positions + i;
        const __m512i y = run.rising && i + 8 <= run.count && at[7] - at[0] == 7
                              ? _mm512_loadu_si512(run.row + at[0])  // neighbours; to gather them takes much longer
                              : _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), here, _mm512_maskz_loadu_epi64(here, at),
                                                            run.row, 8);
        const __mmask8 wrapped = _mm512_test_epi64_mask(y, top);
        const __m512i t = _mm512_sub_epi64(_mm512_srl_epi64(y, shift), offset);
        const __m512i p = _mm512_mask_blend_epi64(wrapped, load(run.p1), load(run.p0));
        const __m512i q = _mm512_mask_blend_epi64(wrapped, load(run.q1), load(run.q0));
        const __m512i slope = _mm512_add_epi64(_mm512_sub_epi64(_mm512_mullo_epi64(a, t), _mm512_add_epi64(p, p)), b);
        const __m512i rest = _mm512_add_epi64(_mm512_add_epi64(q, c), load(run.mask));
        _mm512_mask_storeu_epi64(run.out + i, here, _mm512_add_epi64(_mm512_mullo_epi64(slope, t), rest));
    }
}

}  // namespace

const QuadraticOps& quadratic_ops_avx512() {
    static const QuadraticOps ops = {share, material_loop, parts_loop};
    return ops;
}

}  // namespace autorep
#endif
