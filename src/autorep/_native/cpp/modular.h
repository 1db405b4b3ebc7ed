// Scalar arithmetic modulo a prime below 2^50, free of branches on the values; a Factor is a constant to multiply by.
#pragma once
#include "common.h"

namespace autorep {
namespace {

using u128 = unsigned __int128;
using i128 = __int128;

[[maybe_unused]] inline u64 high(u64 x, u64 y) { return static_cast<u64>((u128(x) * y) >> 64); }
[[maybe_unused]] inline u64 once(u64 x, u64 p) { return x - (p & (u64(0) - u64(x >= p))); }  // x below 2p

struct Factor {
    u64 w, quotient;  // quotient = floor(w * 2^64 / p)
    Factor() = default;
    Factor(u64 value, u64 p) : w(value % p), quotient(static_cast<u64>((u128(value % p) << 64) / p)) {}
    u64 times(u64 x, u64 p) const { return x * w - high(x, quotient) * p; }  // any x; below 2p
};

// x modulo p for any 128-bit x; `one` and `word` are the factors 1 and 2^64 mod p.
[[maybe_unused]] inline u64 reduce128(u128 x, const Factor& one, const Factor& word, u64 p) {
    const u64 sum = word.times(static_cast<u64>(x >> 64), p) + one.times(static_cast<u64>(x), p);  // below 4p
    return once(once(sum, 2 * p), p);
}

}  // namespace
}  // namespace autorep
