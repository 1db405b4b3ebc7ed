// The innermost loops of the quadratics, as one instruction set offers them.
#pragma once
#include "common.h"

namespace autorep {

// `count` elements of one channel of one image. With y = row[positions[i]], T = (y >> shift) - 2^(bits-2-shift) and
// P, Q = p1, q1 where the top bit of y is 0, else p0, q0:  out = a T^2 - 2 T P + Q + b T + c + mask.
struct QuadraticRun {
    const u64* row;
    const i64* positions;
    bool rising;  // whether positions rise
    i64 count;
    int bits, shift;
    u64 a, b, c;
    const u64 *p0, *p1, *q0, *q1, *mask;
    u64* out;
};

enum QuadraticPart { kR, kAlphaR, kSquare, kM, kAlphaM, kRM, kWrapRest, kQuadraticParts };

// A party: shares of P and Q from those of the parts (the last four only if `wraps`), with the opened coefficients:
// p0 = a R - aR, q0 = a RR - b R, p1 = p0 - (a m - am << power), q1 = q0 + (a (m << power) - 2 a Rm + b m + wrap rest << power).
struct MaterialRun {
    i64 count;
    u64 a, b;
    int power;
    bool wraps;
    const u64* part[kQuadraticParts];
    u64 *p0, *p1, *q0, *q1;
};

// The dealer: the parts in the clear, from the mask r of `bits` bits, its R = r >> shift and m = r >> (bits - 1); and
// rest = beta R - alpha RR, what q0 and q1 lack.
struct PartsRun {
    i64 count;
    u64 alpha, beta;
    int bits, shift, power;
    bool wraps;
    const u64* r;
    u64 *rest, *part[kQuadraticParts];
};

struct QuadraticOps {
    void (*share)(const QuadraticRun&);
    void (*material)(const MaterialRun&);
    void (*parts)(const PartsRun&);
};

const QuadraticOps& quadratic_ops_portable();
const QuadraticOps& quadratic_ops_avx2();
const QuadraticOps& quadratic_ops_avx512();

}  // namespace autorep
