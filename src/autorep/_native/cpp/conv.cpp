// Ring convolution with a weight that is packed once.
#include <stdexcept>
#include <vector>

#include "bindings.h"

namespace autorep {
namespace {

struct ConvPlan {
    i64 O, C, H, W, kh, kw, sh, sw, ph, pw, dh, dw, groups;
    int bits;
    std::string algorithm;
    std::vector<u64> weight;

    ConvPlan(Words w, i64 C_, i64 H_, i64 W_, std::vector<i64> geometry, i64 groups_, int bits_, const std::string& algorithm_)
        : O(static_cast<i64>(w.shape(0))), C(C_), H(H_), W(W_), kh(static_cast<i64>(w.shape(2))),
          kw(static_cast<i64>(w.shape(3))), sh(geometry[0]), sw(geometry[1]), ph(geometry[2]), pw(geometry[3]),
          dh(geometry[4]), dw(geometry[5]), groups(groups_), bits(bits_), algorithm(algorithm_ == "auto" ? "direct" : algorithm_),
          weight(w.data(), w.data() + w.size()) {}

    i64 Ho() const { return (H + 2 * ph - dh * (kh - 1) - 1) / sh + 1; }
    i64 Wo() const { return (W + 2 * pw - dw * (kw - 1) - 1) / sw + 1; }

    void run(Words x, WordsOut out) const {
        const i64 N = static_cast<i64>(x.shape(0)), Cg = C / groups, Og = O / groups;
        parallel_ranges(N * O, 1, [&](i64 begin, i64 end) {
            for (i64 no = begin; no < end; ++no) {
                const i64 n = no / O, o = no % O;
                u64* y = out.data() + no * Ho() * Wo();
                for (i64 i = 0; i < Ho() * Wo(); ++i) y[i] = 0;
                for (i64 c = 0; c < Cg; ++c)
                    for (i64 ky = 0; ky < kh; ++ky)
                        for (i64 kx = 0; kx < kw; ++kx) {
                            const u64 w = weight[((o * Cg + c) * kh + ky) * kw + kx];
                            const u64* image = x.data() + (n * C + (o / Og) * Cg + c) * H * W;
                            for (i64 i = 0; i < Ho(); ++i) {
                                const i64 iy = i * sh + ky * dh - ph;
                                if (iy < 0 || iy >= H) continue;
                                for (i64 j = 0; j < Wo(); ++j) {
                                    const i64 ix = j * sw + kx * dw - pw;
                                    if (ix >= 0 && ix < W) y[i * Wo() + j] += w * image[iy * W + ix];
                                }
                            }
                        }
            }
        });
    }
};

}  // namespace

void register_conv(nb::module_& m) {
    nb::class_<ConvPlan>(m, "ConvPlan")
        .def(nb::init<Words, i64, i64, i64, std::vector<i64>, i64, int, const std::string&>(), NoGil())
        .def("run", &ConvPlan::run, NoGil())
        .def_ro("algorithm", &ConvPlan::algorithm)
        .def_prop_ro("packed_bytes", [](const ConvPlan& p) { return p.weight.size() * 8; });
}

}  // namespace autorep
