// Polynomials modulo X^n + 1 and a product of primes, kept as residues: arrays (primes, count, n).
#pragma once
#include <vector>

#include "modular.h"
#include "ntt.h"

namespace autorep {

// Every level's constants for one prime p = 1 mod 2n.
class Ntt {
public:
    Ntt(u64 p, i64 n);
    void forward(u64* x) const { ops().forward(table(), x); }
    void inverse(u64* x) const { ops().inverse(table(), x); }
    void dot(const u64* w, const u64* x, i64 rows, i64 terms, i64 columns, u64* out, u64* scratch) const {
        ops().dot(table(), w, x, rows, terms, columns, out, scratch);
    }

private:
    struct Form {
        std::vector<u64> words[8];
        NttTable table;
    };
    const NttOps& ops() const;
    const NttTable& table() const;
    Form forms_[3];  // by Simd
};

struct RnsRing {
    RnsRing(i64 n, const std::vector<u64>& primes);
    i64 n;
    std::vector<u64> primes;
    std::vector<Ntt> ntt;
    i64 count() const { return static_cast<i64>(primes.size()); }
};

u64 power_mod(u64 base, u64 exponent, u64 p);

}  // namespace autorep
