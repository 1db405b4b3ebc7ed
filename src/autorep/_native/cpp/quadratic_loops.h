// The loops of the quadratics in plain C++, compiled anew in every instruction set's file: compilers vectorise them, told that
// the arrays lie apart and given bounds that no store can reach.
#pragma once
#include "quadratic.h"

#if defined(__clang__)
#define AUTOREP_APART _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define AUTOREP_APART _Pragma("GCC ivdep")
#else
#define AUTOREP_APART
#endif

namespace autorep {
namespace {

// The public wrap bit selects by a mask, not by a branch.
[[maybe_unused]] void share_loop(const QuadraticRun& run) {
    const u64 offset = u64(1) << (run.bits - 2 - run.shift);
    const u64* row = run.row;
    const i64* positions = run.positions;
    const u64 *p0 = run.p0, *p1 = run.p1, *q0 = run.q0, *q1 = run.q1;
    const u64* mask = run.mask;
    u64* out = run.out;
    const u64 a = run.a, b = run.b, c = run.c;
    const int top = run.bits - 1, shift = run.shift;
    const i64 count = run.count;
    AUTOREP_APART
    for (i64 i = 0; i < count; ++i) {
        const u64 y = row[positions[i]];
        const u64 upper = (y >> top) - 1;  // all ones where the top bit is 0
        const u64 t = (y >> shift) - offset;
        const u64 p = p0[i] ^ ((p0[i] ^ p1[i]) & upper), q = q0[i] ^ ((q0[i] ^ q1[i]) & upper);
        out[i] = (a * t - 2 * p + b) * t + q + c + mask[i];
    }
}

[[maybe_unused]] void material_loop(const MaterialRun& run) {
    const u64 a = run.a, b = run.b;
    const i64 count = run.count;
    const u64 *r = run.part[kR], *alpha_r = run.part[kAlphaR], *square = run.part[kSquare];
    u64 *p0 = run.p0, *q0 = run.q0;
    AUTOREP_APART
    for (i64 i = 0; i < count; ++i) {
        p0[i] = a * r[i] - alpha_r[i];
        q0[i] = a * square[i] - b * r[i];
    }
    if (!run.wraps) return;
    const int power = run.power;
    const u64 *m = run.part[kM], *alpha_m = run.part[kAlphaM], *product = run.part[kRM], *wrap_rest = run.part[kWrapRest];
    u64 *p1 = run.p1, *q1 = run.q1;
    AUTOREP_APART
    for (i64 i = 0; i < count; ++i) {
        p1[i] = p0[i] - ((a * m[i] - alpha_m[i]) << power);
        q1[i] = q0[i] + ((a * ((m[i] << power) - 2 * product[i]) + b * m[i] + wrap_rest[i]) << power);
    }
}

[[maybe_unused]] void parts_loop(const PartsRun& run) {
    const u64 alpha = run.alpha, beta = run.beta;
    const i64 count = run.count;
    const int shift = run.shift, top = run.bits - 1, power = run.power;
    const u64* mask = run.r;
    u64 *r = run.part[kR], *alpha_r = run.part[kAlphaR], *square = run.part[kSquare], *rest = run.rest;
    AUTOREP_APART
    for (i64 i = 0; i < count; ++i) {
        const u64 big_r = mask[i] >> shift, product = alpha * big_r;
        r[i] = big_r;
        alpha_r[i] = product;
        square[i] = big_r * big_r;
        rest[i] = (beta - product) * big_r;
    }
    if (!run.wraps) return;
    u64 *m = run.part[kM], *alpha_m = run.part[kAlphaM], *rm = run.part[kRM], *wrap_rest = run.part[kWrapRest];
    AUTOREP_APART
    for (i64 i = 0; i < count; ++i) {
        const u64 big_r = mask[i] >> shift, bit = mask[i] >> top, set = u64(0) - bit;  // products with m by a mask
        m[i] = bit;
        alpha_m[i] = alpha & set;
        rm[i] = big_r & set;
        wrap_rest[i] = ((2 * big_r - (u64(1) << power)) * alpha - beta) & set;
    }
}

}  // namespace
}  // namespace autorep
