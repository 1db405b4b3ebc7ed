// Constants of the transforms, and the transforms on arrays (primes, count, n).
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "rns.h"

namespace autorep {

u64 power_mod(u64 base, u64 exponent, u64 p) {
    u64 result = 1;
    for (u128 square = base % p; exponent; exponent >>= 1, square = square * square % p)
        if (exponent & 1) result = static_cast<u64>(square * result % p);
    return result;
}

namespace {

u64 bits_of(double x) {
    u64 word;
    std::memcpy(&word, &x, 8);
    return word;
}

double centred(u64 w, u64 p) { return w > p / 2 ? -static_cast<double>(p - w) : static_cast<double>(w); }

// A constant and its quotient by p, as a level's arithmetic wants them.
void write_factor(Simd level, u64 w, u64 p, u64& value, u64& quotient) {
    const bool real = level == Simd::avx2;
    value = real ? bits_of(centred(w, p)) : w;
    quotient = real ? bits_of(centred(w, p) / static_cast<double>(p))
                    : static_cast<u64>((u128(w) << (level == Simd::avx512 ? 52 : 64)) / p);
}

i64 lanes_of(Simd level) { return level == Simd::avx512 ? kAvx512Lanes : level == Simd::avx2 ? kAvx2Lanes : 1; }

std::vector<u64> bit_reversed_powers(u64 root, u64 p, i64 n) {
    std::vector<u64> powers(static_cast<size_t>(n));
    u64 power = 1;
    for (i64 i = 0; i < n; ++i) {
        i64 reversed = 0;
        for (i64 bit = 1, other = n / 2; bit < n; bit *= 2, other /= 2)
            if (i & bit) reversed |= other;
        powers[static_cast<size_t>(reversed)] = power;
        power = static_cast<u64>(u128(power) * root % p);
    }
    return powers;
}

// The roots of the stages inside a vector, in the order in which `Transform` reads them.
std::vector<u64> lane_by_lane(const std::vector<u64>& roots, i64 n, i64 lanes) {
    std::vector<u64> out;
    for (i64 block = 0; lanes > 1 && block < n / (lanes * lanes); ++block)
        for (i64 h = lanes / 2; h >= 1; h /= 2)
            for (i64 g = 0; g < lanes / (2 * h); ++g)
                for (i64 r = 0; r < lanes; ++r)
                    out.push_back(roots[static_cast<size_t>(n / (2 * h) + (lanes * block + r) * (lanes / (2 * h)) + g)]);
    return out;
}

u64 root_of_order(u64 order, u64 p) {
    for (u64 g = 2;; ++g)
        if (power_mod(g, (p - 1) / 2, p) == p - 1) return power_mod(g, (p - 1) / order, p);
}

}  // namespace

Ntt::Ntt(u64 p, i64 n) {
    const u64 psi = root_of_order(static_cast<u64>(2 * n), p);
    const std::vector<u64> roots = bit_reversed_powers(psi, p, n);
    const std::vector<u64> inverses = bit_reversed_powers(power_mod(psi, p - 2, p), p, n);
    for (Simd level : {Simd::portable, Simd::avx2, Simd::avx512}) {
        Form& form = forms_[static_cast<int>(level)];
        const i64 lanes = lanes_of(level);
        const std::vector<u64> sources[4] = {roots, lane_by_lane(roots, n, lanes), inverses,
                                             lane_by_lane(inverses, n, lanes)};
        for (int s = 0; s < 4; ++s) {
            auto &values = form.words[2 * s], &quotients = form.words[2 * s + 1];
            values.resize(sources[s].size());
            quotients.resize(sources[s].size());
            for (size_t i = 0; i < values.size(); ++i) write_factor(level, sources[s][i], p, values[i], quotients[i]);
        }
        const auto& w = form.words;
        form.table = {p, n, w[0].data(), w[1].data(), w[2].data(), w[3].data(),
                      w[4].data(), w[5].data(), w[6].data(), w[7].data(), 0, 0};
        write_factor(level, power_mod(static_cast<u64>(n), p - 2, p), p, form.table.scale, form.table.scale_quotient);
    }
}

const NttOps& Ntt::ops() const {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return ntt_avx512();
    if (simd_level() == Simd::avx2) return ntt_avx2();
#endif
    return ntt_portable();
}

const NttTable& Ntt::table() const { return forms_[static_cast<int>(simd_level())].table; }

RnsRing::RnsRing(i64 n_, const std::vector<u64>& primes_) : n(n_), primes(primes_) {
    if (n < 64 || (n & (n - 1))) throw std::invalid_argument("ring: n = " + std::to_string(n) + "; a power of two from 64");
    ntt.reserve(primes.size());
    for (u64 p : primes) {
        if (p >= u64(1) << 49 || p % static_cast<u64>(2 * n) != 1 || power_mod(3, p - 1, p) != 1)
            throw std::invalid_argument("ring: " + std::to_string(p) + " is not a prime below 2^49 that is 1 mod 2n");
        ntt.emplace_back(p, n);
    }
}

namespace {

// body(prime, polynomial) for every polynomial of an array (primes, count, n).
template <class Array, class Body>
void each_polynomial(const RnsRing& ring, const Array& x, Body&& body) {
    const i64 count = static_cast<i64>(x.shape(1));
    parallel_ranges(ring.count() * count, 4, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) body(i / count, x.data() + i * ring.n);
    });
}

struct alignas(64) CacheLine {
    u64 words[8];
};

// w (primes, rows, terms, n), x (primes, terms, columns, n), out (primes, rows, columns, n).
void dot(const RnsRing& ring, Words w, Words x, WordsOut out) {
    const i64 rows = static_cast<i64>(w.shape(1)), terms = static_cast<i64>(w.shape(2));
    const i64 columns = static_cast<i64>(out.shape(2));
    parallel_ranges(ring.count(), 1, [&](i64 begin, i64 end) {
        const std::unique_ptr<CacheLine[]> scratch(new CacheLine[static_cast<size_t>(dot_scratch(rows, terms, columns) / 8)]);
        for (i64 k = begin; k < end; ++k)
            ring.ntt[static_cast<size_t>(k)].dot(w.data() + k * rows * terms * ring.n,
                                                 x.data() + k * terms * columns * ring.n, rows, terms, columns,
                                                 out.data() + k * rows * columns * ring.n, scratch[0].words);
    });
}

void multiply(const RnsRing& ring, Words x, Words y, WordsOut out) {
    const i64 count = static_cast<i64>(out.shape(1));
    parallel_ranges(ring.count() * count, 4, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i)
            ring.ntt[static_cast<size_t>(i / count)].dot(x.data() + i * ring.n, y.data() + i * ring.n, 1, 1, 1,
                                                         out.data() + i * ring.n, nullptr);  // one term needs no room
    });
}

void add(const RnsRing& ring, WordsOut out, Words x) {
    const u64* from = x.data();
    each_polynomial(ring, out, [&](i64 k, u64* to) {
        const u64 p = ring.primes[static_cast<size_t>(k)];
        const u64* other = from + (to - out.data());
        for (i64 i = 0; i < ring.n; ++i) to[i] = once(to[i] + other[i], p);
    });
}

}  // namespace

void register_ntt(nb::module_& m) {
    nb::class_<RnsRing>(m, "RnsRing")
        .def(nb::init<i64, std::vector<u64>>())
        .def("forward", [](const RnsRing& ring, WordsOut x) {
            each_polynomial(ring, x, [&](i64 k, u64* a) { ring.ntt[static_cast<size_t>(k)].forward(a); });
        }, NoGil())
        .def("inverse", [](const RnsRing& ring, WordsOut x) {
            each_polynomial(ring, x, [&](i64 k, u64* a) { ring.ntt[static_cast<size_t>(k)].inverse(a); });
        }, NoGil())
        .def("dot", &dot, NoGil())
        .def("multiply", &multiply, NoGil())
        .def("add", &add, NoGil());
}

}  // namespace autorep
