// Limits of the processor that kernels are measured against: nothing but the one operation, in registers.
#pragma once
#include "common.h"

namespace autorep {

struct Probes {
    // At least `count` multiply-adds modulo 2^46, 2^52 or 2^64, none waiting for another; returns how many were done.
    i64 (*multiply_add46)(i64 count, u64* sink);
    i64 (*multiply_add52)(i64 count, u64* sink);
    i64 (*multiply_add64)(i64 count, u64* sink);
    // At least `count` AES-128 block encryptions; returns how many were done, 0 without AES instructions.
    i64 (*aes)(i64 count, u64* sink);
};

const Probes& probes_portable();
const Probes& probes_avx2();
const Probes& probes_vaes();
const Probes& probes_avx512();

}  // namespace autorep
