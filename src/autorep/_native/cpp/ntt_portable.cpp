// Transforms in plain C++: Shoup's products with a 64-bit quotient.
#include "modular.h"
#include "ntt_lanes.h"

namespace autorep {
namespace {

struct Scalar {
    using V = u64;
    static constexpr i64 kLanes = 1;
    static constexpr bool kEnters = false;
    u64 p;
    explicit Scalar(const NttTable& t) : p(t.p) {}
    V load(const u64* x) const { return *x; }
    void store(u64* x, V v) const { *x = v; }
    V spread(u64 x) const { return x; }
    V enter(V x) const { return x; }
    V leave(V x) const { return once(once(x, 2 * p), p); }
    V times(V x, V w, V q) const { return x * w - high(x, q) * p; }
    void forward(V& x, V& y, V w, V q) const {  // below 4p
        const V u = once(x, 2 * p), v = times(y, w, q);
        x = u + v;
        y = u - v + 2 * p;
    }
    void inverse(V& x, V& y, V w, V q) const {  // below 2p
        const V d = x - y + 2 * p;
        x = once(x + y, 2 * p);
        y = times(d, w, q);
    }
    void transpose(V (&)[1]) const {}
};

void dot(const NttTable& t, const u64* w, const u64* x, i64 rows, i64 terms, i64 columns, u64* out,
         u64*) {
    const Factor one(1, t.p), word(static_cast<u64>((u128(1) << 64) % t.p), t.p);
    for (i64 r = 0; r < rows; ++r)
        for (i64 c = 0; c < columns; ++c)
            for (i64 i = 0; i < t.n; ++i) {
                u128 sum = 0;
                for (i64 j = 0; j < terms; ++j)
                    sum += u128(w[(r * terms + j) * t.n + i]) * x[(j * columns + c) * t.n + i];
                out[(r * columns + c) * t.n + i] = reduce128(sum, one, word, t.p);
            }
}

}  // namespace

const NttOps& ntt_portable() {
    static const NttOps ops = {Transform<Scalar>::forward, Transform<Scalar>::inverse, dot};
    return ops;
}

}  // namespace autorep
