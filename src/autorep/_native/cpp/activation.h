// The innermost loops of the activations, as one instruction set offers them.
#pragma once
#include "common.h"

namespace autorep {

// (d, dR, dm) = v + (s, sr, sm), or (one - d, r - dR, m - dm) where flip is 1:  out = t d - dR + (c1 dm << wrap_shift).
struct ReluRun {
    i64 count;
    u64 one;
    int wrap_shift;
    const u64 *t, *c1, *flip, *v, *r, *m, *s, *sr, *sm;
    u64* out;
};

void relu_run_portable(const ReluRun& run);
void relu_run_avx512(const ReluRun& run);

}  // namespace autorep
