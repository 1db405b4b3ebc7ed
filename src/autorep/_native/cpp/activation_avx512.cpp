// The activations eight elements at a time.
#include "activation.h"

#if AUTOREP_X86
#include "avx512.h"

namespace autorep {

void relu_run_avx512(const ReluRun& run) {
    const __m512i one = _mm512_set1_epi64(static_cast<long long>(run.one));
    const __m512i every_third = _mm512_set_epi64(21, 18, 15, 12, 9, 6, 3, 0);
    const __m512i sign_bit = _mm512_set1_epi64(static_cast<long long>(u64(1) << run.sign_bit));
    const __m128i wrap_shift = _mm_cvtsi32_si128(run.wrap_shift);
    for (i64 i = 0; i < run.count; i += 8) {
        const __mmask8 here = first_words(run.count - i);
        const auto load = [&](const u64* from) { return _mm512_maskz_loadu_epi64(here, from + i); };
        const __mmask8 flipped = _mm512_testn_epi64_mask(load(run.sign), sign_bit);
        const auto part = [&](int k, const u64* added, __m512i whole) {
            __m512i value = load(added);
            if (run.v)
                value = _mm512_add_epi64(value, _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), here, every_third,
                                                                            run.v + 3 * i + k, 8));
            return _mm512_mask_sub_epi64(value, flipped, whole, value);
        };
        const __m512i d = part(0, run.s, one), dr = part(1, run.sr, load(run.r)), dm = part(2, run.sm, load(run.m));
        const __mmask8 wrapped = _mm512_test_epi64_mask(load(run.c1), load(run.c1));
        const __m512i wrap = _mm512_maskz_sll_epi64(wrapped, dm, wrap_shift);
        const __m512i product = _mm512_mullo_epi64(load(run.t), d);
        _mm512_mask_storeu_epi64(run.out + i, here, _mm512_add_epi64(_mm512_sub_epi64(product, dr), wrap));
    }
}

}  // namespace autorep
#endif
