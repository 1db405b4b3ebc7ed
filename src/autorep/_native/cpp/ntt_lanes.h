// The transforms, written once for any number of lanes. `A` is one level's modular arithmetic:
//   V, kLanes, kEnters     a vector, its words, and whether residues need conversion on entry
//   load, store, spread    between memory and vectors
//   forward, inverse       the butterflies (x, y) -> (x + wy, x - wy) and (x + y, (x - y) w), lazily reduced
//   times, enter, leave    product by a constant; conversion from and to residues in [0, p)
//   transpose              kLanes vectors as a matrix
// Likewise the dot products; `A` then offers:
//   kLanes, kParts, kColumns  words of a vector, vectors that `put` makes of one, columns that `products` takes at once
//   put                       a factor as `products` wants it
//   products<R, C>            R rows of w times C columns of x, over all terms
//   one                       a single product
// Included by each instruction set's file with its own flags, hence all unnamed and without library headers.
#pragma once
#include "ntt.h"

namespace autorep {
namespace {

template <class A>
class Transform {
public:
    using V = typename A::V;
    static constexpr i64 L = A::kLanes;

    static void forward(const NttTable& t, u64* x) {
        const A a(t);
        if (A::kEnters)
            for (i64 i = 0; i < t.n; i += L) a.store(x + i, a.enter(a.load(x + i)));
        i64 groups = 1, half = t.n / 2;
        for (; half >= 2 * L; groups *= 4, half /= 4) forward_two(a, t, x, groups, half);
        if (half >= L) forward_one(a, t, x, groups, half);
        for (i64 i = 0; i < t.n; i += L * L) {
            V r[L];
            for (i64 c = 0; c < L; ++c) r[c] = a.load(x + i + c * L);
            if (L > 1) {
                a.transpose(r);
                const i64 base = i / L * (L - 1);
                for (i64 h = L / 2; h >= 1; h /= 2)
                    for (i64 g = 0; g < L / (2 * h); ++g) {
                        const i64 at = base + (L / (2 * h) - 1 + g) * L;
                        const V w = a.load(t.short_root + at), q = a.load(t.short_quotient + at);
                        for (i64 c = 2 * h * g; c < 2 * h * g + h; ++c) a.forward(r[c], r[c + h], w, q);
                    }
                a.transpose(r);
            }
            for (i64 c = 0; c < L; ++c) a.store(x + i + c * L, a.leave(r[c]));
        }
    }

    static void inverse(const NttTable& t, u64* x) {
        const A a(t);
        for (i64 i = 0; i < t.n; i += L * L) {
            V r[L];
            for (i64 c = 0; c < L; ++c) r[c] = a.enter(a.load(x + i + c * L));
            if (L > 1) {
                a.transpose(r);
                const i64 base = i / L * (L - 1);
                for (i64 h = 1; h < L; h *= 2)
                    for (i64 g = 0; g < L / (2 * h); ++g) {
                        const i64 at = base + (L / (2 * h) - 1 + g) * L;
                        const V w = a.load(t.short_inverse + at), q = a.load(t.short_inverse_quotient + at);
                        for (i64 c = 2 * h * g; c < 2 * h * g + h; ++c) a.inverse(r[c], r[c + h], w, q);
                    }
                a.transpose(r);
            }
            for (i64 c = 0; c < L; ++c) a.store(x + i + c * L, r[c]);
        }
        i64 half = L;
        for (; 4 * half <= t.n; half *= 4) inverse_two(a, t, x, half);
        if (2 * half == t.n) inverse_one(a, t, x, half);
        const V scale = a.spread(t.scale), quotient = a.spread(t.scale_quotient);
        for (i64 i = 0; i < t.n; i += L) a.store(x + i, a.leave(a.times(a.load(x + i), scale, quotient)));
    }

private:
    static void forward_one(const A& a, const NttTable& t, u64* x, i64 groups, i64 half) {
        for (i64 i = 0; i < groups; ++i) {
            const V w = a.spread(t.root[groups + i]), q = a.spread(t.root_quotient[groups + i]);
            for (u64* at = x + 2 * i * half; at < x + (2 * i + 1) * half; at += L) {
                V u = a.load(at), v = a.load(at + half);
                a.forward(u, v, w, q);
                a.store(at, u);
                a.store(at + half, v);
            }
        }
    }

    static void forward_two(const A& a, const NttTable& t, u64* x, i64 groups, i64 half) {
        const i64 quarter = half / 2;
        for (i64 i = 0; i < groups; ++i) {
            const i64 k = groups + i;
            const V w = a.spread(t.root[k]), wq = a.spread(t.root_quotient[k]);
            const V lo = a.spread(t.root[2 * k]), lo_q = a.spread(t.root_quotient[2 * k]);
            const V hi = a.spread(t.root[2 * k + 1]), hi_q = a.spread(t.root_quotient[2 * k + 1]);
            u64* base = x + 2 * i * half;
            for (u64* at = base; at < base + quarter; at += L) {
                V r0 = a.load(at), r1 = a.load(at + quarter), r2 = a.load(at + half), r3 = a.load(at + half + quarter);
                a.forward(r0, r2, w, wq);
                a.forward(r1, r3, w, wq);
                a.forward(r0, r1, lo, lo_q);
                a.forward(r2, r3, hi, hi_q);
                a.store(at, r0);
                a.store(at + quarter, r1);
                a.store(at + half, r2);
                a.store(at + half + quarter, r3);
            }
        }
    }

    static void inverse_one(const A& a, const NttTable& t, u64* x, i64 half) {
        const V w = a.spread(t.inverse[1]), q = a.spread(t.inverse_quotient[1]);
        for (u64* at = x; at < x + half; at += L) {
            V u = a.load(at), v = a.load(at + half);
            a.inverse(u, v, w, q);
            a.store(at, u);
            a.store(at + half, v);
        }
    }

    static void inverse_two(const A& a, const NttTable& t, u64* x, i64 half) {
        const i64 groups = t.n / (2 * half);
        for (i64 i = 0; i < groups; i += 2) {
            const i64 k = groups + i;
            const V lo = a.spread(t.inverse[k]), lo_q = a.spread(t.inverse_quotient[k]);
            const V hi = a.spread(t.inverse[k + 1]), hi_q = a.spread(t.inverse_quotient[k + 1]);
            const V w = a.spread(t.inverse[k / 2]), wq = a.spread(t.inverse_quotient[k / 2]);
            u64* base = x + 2 * i * half;
            for (u64* at = base; at < base + half; at += L) {
                V r0 = a.load(at), r1 = a.load(at + half), r2 = a.load(at + 2 * half), r3 = a.load(at + 3 * half);
                a.inverse(r0, r1, lo, lo_q);
                a.inverse(r2, r3, hi, hi_q);
                a.inverse(r0, r2, w, wq);
                a.inverse(r1, r3, w, wq);
                a.store(at, r0);
                a.store(at + half, r1);
                a.store(at + 2 * half, r2);
                a.store(at + 3 * half, r3);
            }
        }
    }
};

// Whole polynomials lie a power of two apart, so walking over terms would meet the same few cache lines again and
// again: a tile of every factor is first copied to where the products read it, one behind the other.
template <class A>
class Dot {
public:
    static void run(const NttTable& t, const u64* w, const u64* x, i64 rows, i64 terms, i64 columns, u64* out,
                    u64* scratch) {
        const A a(t);
        if (terms == 1) return single(a, t.n, w, x, rows, columns, out);
        u64 *w_tile = scratch, *x_tile = scratch + rows * terms * kDotTile * A::kParts;
        for (i64 i = 0; i < t.n; i += kDotTile) {
            for (i64 r = 0; r < rows; ++r)
                for (i64 j = 0; j < terms; ++j) copy(a, w + (r * terms + j) * t.n + i, w_tile, r, rows, j, terms);
            for (i64 j = 0; j < terms; ++j)
                for (i64 c = 0; c < columns; ++c) copy(a, x + (j * columns + c) * t.n + i, x_tile, c, columns, j, terms);
            for (i64 k = 0; k < kDotTile / A::kLanes; ++k)
                tile(a, t.n, w_tile + k * rows * terms * kStep, x_tile + k * columns * terms * kStep, rows, terms,
                     columns, out + i + k * A::kLanes);
        }
    }

private:
    static constexpr i64 kStep = A::kLanes * A::kParts, kRows = 2;

    static void copy(const A& a, const u64* from, u64* to, i64 number, i64 of, i64 term, i64 terms) {
        for (i64 k = 0; k < kDotTile / A::kLanes; ++k)
            a.put(to + ((k * of + number) * terms + term) * kStep, from + k * A::kLanes);
    }

    static void tile(const A& a, i64 n, const u64* w, const u64* x, i64 rows, i64 terms, i64 columns, u64* out) {
        i64 r = 0;
        for (; r + kRows <= rows; r += kRows) row<kRows>(a, n, w + r * terms * kStep, x, terms, columns, out + r * columns * n);
        if (r < rows) row<1>(a, n, w + r * terms * kStep, x, terms, columns, out + r * columns * n);
    }

    template <i64 R>
    static void row(const A& a, i64 n, const u64* w, const u64* x, i64 terms, i64 columns, u64* out) {
        i64 c = 0;
        for (; c + A::kColumns <= columns; c += A::kColumns)
            a.template products<R, A::kColumns>(w, x + c * terms * kStep, terms, out + c * n, columns * n, n);
        for (; c < columns; ++c) a.template products<R, 1>(w, x + c * terms * kStep, terms, out + c * n, columns * n, n);
    }

    static void single(const A& a, i64 n, const u64* w, const u64* x, i64 rows, i64 columns, u64* out) {
        for (i64 r = 0; r < rows; ++r)
            for (i64 c = 0; c < columns; ++c)
                for (i64 i = 0; i < n; i += A::kLanes) a.one(w + r * n + i, x + c * n + i, out + (r * columns + c) * n + i);
    }
};

}  // namespace
}  // namespace autorep
