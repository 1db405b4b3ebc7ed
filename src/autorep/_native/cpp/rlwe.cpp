// What ring-LWE needs beside transforms: samplers, and conversions between integers, residues and fractions of q.
// No branch and no address depends on a secret; only `uniform`, whose output is public, rejects.
#include <cstring>

#include "aes.h"
#include "bindings.h"
#include "rns.h"

namespace autorep {
namespace {

using Integers = Array<const i64>;
using IntegersOut = Array<i64>;

// Uniform residues from a public key's stream: as many low bits of a word as p has, further words for those not below p.
void uniform(const RnsRing& ring, Bytes key, WordsOut out) {
    const AesKey expanded = aes_expand(key.data());
    const i64 words = static_cast<i64>(out.size()), of_prime = words / ring.count();
    aes_ops().ctr(expanded, 0, out.data(), words, ~u64(0));
    u64 next[2], block = static_cast<u64>(ceil_div(words, 2));
    for (i64 k = 0; k < ring.count(); ++k) {
        const u64 p = ring.primes[static_cast<size_t>(k)];
        u64 mask = 1;
        while (mask < p) mask = 2 * mask + 1;
        for (u64* x = out.data() + k * of_prime; x < out.data() + (k + 1) * of_prime; ++x)
            for (*x &= mask; *x >= p; *x = next[0] & mask) aes_ops().ctr(expanded, block++, next, 2, ~u64(0));
    }
}

// words(i) for each of `count` outputs that take `each` words of the key stream.
template <class Body>
void stream_words(Bytes key, i64 count, i64 each, Body&& body) {
    const AesKey expanded = aes_expand(key.data());
    constexpr i64 kFlight = 512;
    parallel_ranges(ceil_div(count, kFlight), 64, [&](i64 begin, i64 end) {
        u64 words[2 * kFlight];
        for (i64 first = begin * kFlight; first < (end * kFlight < count ? end * kFlight : count); first += kFlight) {
            const i64 n = count - first < kFlight ? count - first : kFlight;
            aes_ops().ctr(expanded, static_cast<u64>(first * each / 2), words, n * each, ~u64(0));
            for (i64 i = 0; i < n; ++i) body(first + i, words + i * each);
        }
    });
}

u64 ones21(u64 x) {  // bits set among the low 21
    x &= low_mask(21);
    x -= (x >> 1) & 0x155555;
    x = (x & 0x333333) + ((x >> 2) & 0x333333);
    x = (x + (x >> 4)) & 0x0F0F0F;
    return (x + (x >> 8) + (x >> 16)) & 31;
}

// Centred binomial, 21 bits less 21 bits: variance 10.5, standard deviation 3.24.
void noise(Bytes key, IntegersOut out) {
    stream_words(key, static_cast<i64>(out.size()), 1, [&](i64 i, const u64* w) {
        out.data()[i] = static_cast<i64>(ones21(*w)) - static_cast<i64>(ones21(*w >> 21));
    });
}

void ternary(Bytes key, IntegersOut out) {  // 2^-63 from uniform on -1, 0, 1
    stream_words(key, static_cast<i64>(out.size()), 1, [&](i64 i, const u64* w) {
        out.data()[i] = static_cast<i64>(high(*w, 3)) - 1;
    });
}

void below(Bytes key, u64 bound, WordsOut out) {  // within 2^-64 of uniform below `bound`
    stream_words(key, static_cast<i64>(out.size()), 2, [&](i64 i, const u64* w) {
        out.data()[i] = static_cast<u64>((u128(w[1]) * bound + high(w[0], bound)) >> 64);
    });
}

// out (primes, count, n) = values (count, n) * factors (primes), added to what is there where `accumulate`.
void residues(const RnsRing& ring, Integers values, Words factors, WordsOut out, bool accumulate) {
    const i64 total = static_cast<i64>(values.size());
    for (i64 k = 0; k < ring.count(); ++k) {
        const u64 p = ring.primes[static_cast<size_t>(k)];
        const Factor factor(factors.data()[k], p);
        u64* to = out.data() + k * total;
        const i64* from = values.data();
        parallel_ranges(total, 1 << 15, [&](i64 begin, i64 end) {
            for (i64 i = begin; i < end; ++i) {
                const u64 sign = static_cast<u64>(from[i] >> 63);  // all ones for a negative value
                const u64 magnitude = (static_cast<u64>(from[i]) ^ sign) - sign;
                const u64 r = once(factor.times(magnitude, p), p);
                const u64 value = once((r ^ sign) - sign + (p & sign), p);  // p - r, and p itself becomes 0
                to[i] = accumulate ? once(value + to[i], p) : value;
            }
        });
    }
}

// The same for values of magnitude below every prime: out (primes, count, n) = values (count, n).
void small_residues(const RnsRing& ring, Integers values, WordsOut out) {
    const i64 total = static_cast<i64>(values.size());
    for (i64 k = 0; k < ring.count(); ++k) {
        const i64 p = static_cast<i64>(ring.primes[static_cast<size_t>(k)]);
        u64* to = out.data() + k * total;
        const i64* from = values.data();
        parallel_ranges(total, 1 << 16, [&](i64 begin, i64 end) {
            for (i64 i = begin; i < end; ++i) to[i] = static_cast<u64>(from[i] + (p & (from[i] >> 63)));
        });
    }
}

// The value of x (primes, count, n) divided by the product of all primes, modulo 1, to `bits` binary places.
void fraction(const RnsRing& ring, Words x, int bits, WordsOut lo, WordsOut hi) {
    const i64 total = static_cast<i64>(lo.size());
    std::vector<Factor> cofactor;
    std::vector<u128> reciprocal;
    for (u64 p : ring.primes) {
        u64 rest = 1;
        for (u64 other : ring.primes)
            if (other != p) rest = static_cast<u64>(u128(rest) * (other % p) % p);
        cofactor.emplace_back(power_mod(rest, p - 2, p), p);
        reciprocal.push_back(~u128(0) / p);  // floor(2^128 / p), p being odd
    }
    parallel_ranges(total, 1 << 14, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) {
            u128 sum = 0;
            for (size_t k = 0; k < cofactor.size(); ++k) {
                const u64 p = ring.primes[k];
                sum += once(cofactor[k].times(x.data()[static_cast<i64>(k) * total + i], p), p) * reciprocal[k];
            }
            sum = (sum + (u128(1) << (127 - bits))) >> (128 - bits);
            lo.data()[i] = static_cast<u64>(sum);
            hi.data()[i] = static_cast<u64>(sum >> 64);
        }
    });
}

// x (2, count, n) to the integer of least magnitude with these residues, as two words in two's complement.
void combine(const RnsRing& ring, Words x, WordsOut lo, WordsOut hi) {
    const u64 p = ring.primes.at(0), q = ring.primes.at(1);
    const Factor inverse(power_mod(p % q, q - 2, q), q), unit(1, q);
    const i64 total = static_cast<i64>(lo.size());
    parallel_ranges(total, 1 << 14, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) {
            const u64 a = x.data()[i], b = x.data()[total + i];
            const u64 above = u64(0) - u64(a > p / 2);
            const i64 first = static_cast<i64>(a - (p & above));  // centred
            const u64 first_q = once(once(unit.times(a, q), q) + once(q - (p % q & above), q), q);
            const u64 digit = once(inverse.times(b + q - first_q, q), q);
            const i64 second = static_cast<i64>(digit - (q & (u64(0) - u64(digit > q / 2))));
            const i128 value = i128(first) + i128(second) * i128(p);
            lo.data()[i] = static_cast<u64>(value);
            hi.data()[i] = static_cast<u64>(static_cast<u128>(value) >> 64);
        }
    });
}

// round(f * t) modulo t for the fraction f of `bits` binary places in lo and hi; t below 2^63.
void scale_fraction(Words lo, Words hi, int bits, u64 t, WordsOut out) {
    const i64 total = static_cast<i64>(out.size());
    parallel_ranges(total, 1 << 14, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) {
            const u128 f = ((u128(hi.data()[i]) << 64) | lo.data()[i]) << (128 - bits);
            const u128 whole = u128(static_cast<u64>(f >> 64)) * t + high(static_cast<u64>(f), t);
            out.data()[i] = once(static_cast<u64>((whole + (u128(1) << 63)) >> 64), t);
        }
    });
}

// x * y modulo the odd t below 2^63, word by word, without a division on secret values (Montgomery, twice).
void multiply_modulo(Words x, Words y, u64 t, WordsOut out) {
    u64 inverse = t;  // Newton: t^-1 modulo 2^64
    for (int step = 0; step < 5; ++step) inverse *= 2 - t * inverse;
    const u64 square = static_cast<u64>((~u128(0) % t + 1) % t);  // 2^128 mod t
    const auto reduced = [&](u128 value) {
        const u64 q = static_cast<u64>(value) * inverse;
        return once(static_cast<u64>(value >> 64) + t - high(q, t), t);
    };
    parallel_ranges(static_cast<i64>(out.size()), 1 << 14, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i)
            out.data()[i] = reduced(u128(reduced(u128(x.data()[i]) * y.data()[i])) * square);
    });
}

}  // namespace

void register_rlwe(nb::module_& m) {
    m.def("rlwe_uniform", &uniform, NoGil());
    m.def("rlwe_noise", &noise, NoGil());
    m.def("rlwe_ternary", &ternary, NoGil());
    m.def("rlwe_below", &below, NoGil());
    m.def("rlwe_residues", &residues, NoGil());
    m.def("rlwe_small_residues", &small_residues, NoGil());
    m.def("rlwe_fraction", &fraction, NoGil());
    m.def("rlwe_combine", &combine, NoGil());
    m.def("rlwe_scale_fraction", &scale_fraction, NoGil());
    m.def("rlwe_multiply_modulo", &multiply_modulo, NoGil());
}

}  // namespace autorep
