// The innermost loop of the quadratic activation, as one instruction set offers it.
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

void quadratic_run_portable(const QuadraticRun& run);
void quadratic_run_avx512(const QuadraticRun& run);

}  // namespace autorep
