// The loops of the quadratics in plain C++, compiled anew in every instruction set's file: compilers vectorise them.
#pragma once
#include "quadratic.h"

namespace autorep {
namespace {

// The public wrap bit selects by a mask, not by a branch.
[[maybe_unused]] void share_loop(const QuadraticRun& run) {
    const u64 offset = u64(1) << (run.bits - 2 - run.shift);
    const u64* __restrict row = run.row;
    const i64* __restrict positions = run.positions;
    const u64 *__restrict p0 = run.p0, *__restrict p1 = run.p1, *__restrict q0 = run.q0, *__restrict q1 = run.q1;
    const u64* __restrict mask = run.mask;
    u64* __restrict out = run.out;
    const u64 a = run.a, b = run.b, c = run.c;
    const int top = run.bits - 1, shift = run.shift;
    for (i64 i = 0; i < run.count; ++i) {
        const u64 y = row[positions[i]];
        const u64 upper = (y >> top) - 1;  // all ones where the top bit is 0
        const u64 t = (y >> shift) - offset;
        const u64 p = p0[i] ^ ((p0[i] ^ p1[i]) & upper), q = q0[i] ^ ((q0[i] ^ q1[i]) & upper);
        out[i] = (a * t - 2 * p + b) * t + q + c + mask[i];
    }
}

void material_loop(const MaterialRun& run) {
    const u64 a = run.a, b = run.b;
    const u64 *__restrict r = run.part[kR], *__restrict alpha_r = run.part[kAlphaR];
    const u64* __restrict square = run.part[kSquare];
    u64 *__restrict p0 = run.p0, *__restrict q0 = run.q0;
    for (i64 i = 0; i < run.count; ++i) {
        p0[i] = a * r[i] - alpha_r[i];
        q0[i] = a * square[i] - b * r[i];
    }
    if (!run.wraps) return;
    const int power = run.power;
    const u64 *__restrict m = run.part[kM], *__restrict alpha_m = run.part[kAlphaM];
    const u64 *__restrict product = run.part[kRM], *__restrict wrap_rest = run.part[kWrapRest];
    u64 *__restrict p1 = run.p1, *__restrict q1 = run.q1;
    for (i64 i = 0; i < run.count; ++i) {
        p1[i] = p0[i] - ((a * m[i] - alpha_m[i]) << power);
        q1[i] = q0[i] + ((a * ((m[i] << power) - 2 * product[i]) + b * m[i] + wrap_rest[i]) << power);
    }
}

void parts_loop(const PartsRun& run) {
    const u64 alpha = run.alpha, beta = run.beta;
    const int shift = run.shift, top = run.bits - 1, power = run.power;
    const u64* __restrict mask = run.r;
    u64 *__restrict r = run.part[kR], *__restrict alpha_r = run.part[kAlphaR];
    u64 *__restrict square = run.part[kSquare], *__restrict rest = run.rest;
    for (i64 i = 0; i < run.count; ++i) {
        const u64 big_r = mask[i] >> shift, product = alpha * big_r;
        r[i] = big_r;
        alpha_r[i] = product;
        square[i] = big_r * big_r;
        rest[i] = (beta - product) * big_r;
    }
    if (!run.wraps) return;
    u64 *__restrict m = run.part[kM], *__restrict alpha_m = run.part[kAlphaM];
    u64 *__restrict rm = run.part[kRM], *__restrict wrap_rest = run.part[kWrapRest];
    for (i64 i = 0; i < run.count; ++i) {
        const u64 bit = mask[i] >> top, set = u64(0) - bit;  // products with m by a mask
        m[i] = bit;
        alpha_m[i] = alpha & set;
        rm[i] = r[i] & set;
        wrap_rest[i] = ((2 * r[i] - (u64(1) << power)) * alpha - beta) & set;
    }
}

}  // namespace
}  // namespace autorep
