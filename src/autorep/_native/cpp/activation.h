// The innermost loops of the activations, as one instruction set offers them.
#pragma once
#include "common.h"

namespace autorep {

// `count` elements of one channel of one image. With y = row[positions[i]], T = (y >> shift) - 2^(bits-2-shift) and
// P, Q = p1, q1 where the top bit of y is 0, else p0, q0:  out = a T^2 - 2 T P + Q + b T + c + mask.
struct QuadraticRun {
    const u64* row;
    const i64* positions;
    i64 count;
    int bits, shift;
    u64 a, b, c;
    const u64 *p0, *p1, *q0, *q1, *mask;
    u64* out;
};

// (d, dR, dm) = v + (s, sr, sm), or (one - d, r - dR, m - dm) where flip is 1:  out = t d - dR + (c1 dm << wrap_shift).
struct ReluRun {
    i64 count;
    u64 one;
    int wrap_shift;
    const u64 *t, *c1, *flip, *v, *r, *m, *s, *sr, *sm;
    u64* out;
};

void quadratic_run_portable(const QuadraticRun& run);
void quadratic_run_avx512(const QuadraticRun& run);
void relu_run_portable(const ReluRun& run);
void relu_run_avx512(const ReluRun& run);

}  // namespace autorep
