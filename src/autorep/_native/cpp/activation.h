// The innermost loops of the activations, as one instruction set offers them.
#pragma once
#include "common.h"

namespace autorep {

// (d, dR, dm) = v + (s, sr, sm), or (one - d, r - dR, m - dm) where bit `sign_bit` of sign is 0:
//   out = t d - dR + (c1 dm << wrap_shift).
// v may be null: zeros.
struct ReluRun {
    i64 count;
    u64 one;
    int sign_bit, wrap_shift;
    const u64 *t, *c1, *sign, *v, *r, *m, *s, *sr, *sm;
    u64* out;
};

using ReluKernel = void(const ReluRun&);
ReluKernel relu_run_avx512;

}  // namespace autorep
