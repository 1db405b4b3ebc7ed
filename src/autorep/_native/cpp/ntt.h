// Negacyclic number-theoretic transforms modulo primes below 2^49, as one instruction set offers them.
//
// All levels take and give residues in [0, p), in the same bit-reversed order, so two different processors agree.
#pragma once
#include "common.h"

namespace autorep {

// One prime's constants in one level's own form: integers or doubles in 64-bit words. Plain pointers: files built
// for different instruction sets include this.
struct NttTable {
    u64 p;
    i64 n;
    const u64 *root, *root_quotient;              // powers of psi, bit-reversed; and divided by p
    const u64 *short_root, *short_quotient;       // of the stages within one vector, lane by lane
    const u64 *inverse, *inverse_quotient;
    const u64 *short_inverse, *short_inverse_quotient;
    u64 scale, scale_quotient;                    // 1 / n
};

struct NttOps {
    void (*forward)(const NttTable& table, u64* x);
    void (*inverse)(const NttTable& table, u64* x);
    // out (rows, columns, n) = sum over terms of w (rows, terms, n) * x (terms, columns, n), position by position, mod p.
    // scratch: `dot_scratch` words, on a boundary of 64 bytes; none where there is one term.
    void (*dot)(const NttTable& table, const u64* w, const u64* x, i64 rows, i64 terms, i64 columns, u64* out,
                u64* scratch);
};

constexpr i64 kDotTile = 32, kDotParts = 2;  // positions that a dot product takes at a time; vectors a factor becomes
static inline i64 dot_scratch(i64 rows, i64 terms, i64 columns) {
    return kDotParts * kDotTile * (rows + columns) * terms;
}

const NttOps& ntt_portable();
const NttOps& ntt_avx2();
const NttOps& ntt_avx512();

constexpr i64 kAvx2Lanes = 4, kAvx512Lanes = 8;

}  // namespace autorep
