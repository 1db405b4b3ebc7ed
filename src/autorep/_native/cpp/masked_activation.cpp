// The masked activation of training: X = mask·min(relu(Z), cap) + (1 − mask)·poly((Z − mean)/std), forward and backward
// in one pass each over the batch. Tensors arrive as addresses, in float32 or bfloat16, because torch's bfloat16 has no
// numpy type; arithmetic and sums are in float32, sums over images in double. The Python face checks shapes and layouts.
// Z is first held between the channel's low and high. Where that changes it, the polynomial passes no gradient to it; a kept
// activation and the range penalty do, as if it had been there from the start. Elsewhere the polynomial passes gradients on
// with its slope held within ± slope_limit. The range penalty is summed for each image. Where there are gates, they mix
// activation and polynomial in the mask's place; the range penalty goes by the mask all the same.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "bindings.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross a function that is not inlined

namespace autorep {
namespace {

struct Bfloat16 {
    std::uint16_t bits;
};

// One call's tensors. An image is either `positions` rows of `channels` (channels last) or `channels` rows of
// `positions`; mask, gate and mask_grad are laid out like an image. Rows of `channel` are mean, 1/std, p0, p1, p2, low,
// high.
struct Call {
    const void* z;
    const void* out_grad;      // null in the forward pass
    void* out;                 // X, or the gradient of Z
    const std::int32_t* mask;  // as wide as a float, so that a block of it is one register
    const float* gate;         // laid out like the mask; null where the mask decides
    const float* channel;
    float* mask_grad;   // of the gate where there is one; null when aux does not train
    double* term_grad;  // per thread 3 rows of `channels`
    double* range_sum;        // per thread one number an image; forward only
    const float* range_grad;  // one number an image; backward only
    i64 images, channels, positions;
    float cap;
    float range_limit;  // infinity when no range penalty is collected
    float slope_limit;
};

// One thread's part of the rows: its sums go to the place of `thread`.
using Kernel = void (*)(const Call&, i64 begin, i64 end, int thread);

#define AUTOREP_LANES 4
namespace portable {
#include "masked_activation.inc"
}
#undef AUTOREP_LANES
#if AUTOREP_X86
#define AUTOREP_LANES 8
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "masked_activation.inc"
}
#pragma GCC pop_options
#undef AUTOREP_LANES
#define AUTOREP_LANES 16
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
namespace avx512 {
#include "masked_activation.inc"
}
#pragma GCC pop_options
#undef AUTOREP_LANES
#endif

template <class T>
Kernel pick(bool last, bool backward) {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return avx512::pick<T>(last, backward);
    if (simd_level() == Simd::avx2) return avx2::pick<T>(last, backward);
#endif
    return portable::pick<T>(last, backward);
}

int parts_of(i64 rows, i64 elements, int threads) {
    const i64 worth = elements / (1 << 15) + 1;  // a thread costs about as much as 32,768 elements
    return static_cast<int>(std::max<i64>(1, std::min<i64>({rows, worth, threads})));
}

struct Parts {
    const Call& call;
    Kernel kernel;
    i64 rows;
    int count;
    std::atomic<int> next{0};

    void work() {
        for (int part = next++; part < count; part = next++)
            kernel(call, rows * part / count, rows * (part + 1) / count, part);
    }
};

// Torch's own threads where its OpenMP library is loaded: they wait for work by spinning, and threads of ours beside
// them would have to share their cores.
void run(const Call& call, Kernel kernel, i64 rows, int parts) {
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
    static const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    Parts work{call, kernel, rows, parts};
    if (parallel && parts > 1) {
        parallel([](void* shared) { static_cast<Parts*>(shared)->work(); }, &work, parts, 0);
        return;
    }
    std::vector<std::thread> helpers;
    for (int part = 1; part < parts; ++part) helpers.emplace_back(&Parts::work, &work);
    work.work();
    for (auto& helper : helpers) helper.join();
}

template <class P>
P* pointer(std::uintptr_t address) {
    return reinterpret_cast<P*>(address);
}

// In tiles, so that what a cache line holds is used while it is there.
template <class From, class To>
void transpose(const From* from, i64 rows, i64 columns, To* to) {
    constexpr i64 tile = 16;
    for (i64 top = 0; top < rows; top += tile)
        for (i64 left = 0; left < columns; left += tile)
            for (i64 column = left; column < std::min(left + tile, columns); ++column)
                for (i64 row = top; row < std::min(top + tile, rows); ++row)
                    to[column * rows + row] = from[row * columns + column];
}

// A call site as Python holds it: the mask with channels first, the polynomials in the basis 1, t, t² − 1 of
// t = (Z − mean)/deviation, in units of the deviation. There are `degree` + 1 rows of `polynomials` coefficients, one
// for each channel or one for all; row 2 holds the inverse softplus of what it stands for.
struct Site {
    const std::uint8_t* mask;
    const float *gate, *mean, *deviation, *coefficients;  // no gate where the mask decides
    i64 channels, positions, polynomials;
    int degree;

    float row(int j, i64 c) const { return coefficients[j * polynomials + of(c)]; }
    i64 of(i64 c) const { return polynomials == 1 ? 0 : c; }
    static float softplus(float raw) { return raw > 20 ? raw : std::log1p(std::exp(raw)); }

    // What a Call reads per channel; inputs are held within so many deviations of their mean.
    std::vector<float> numbers(float input_limit) const {
        std::vector<float> all(7 * channels);
        for (i64 c = 0; c < channels; ++c) {
            const float m = mean[of(c)], s = deviation[of(c)], k2 = degree == 2 ? softplus(row(2, c)) : 0.0f;
            const float p0 = s * (row(0, c) - k2), p1 = s * row(1, c), p2 = s * k2;
            const float column[7] = {m, 1 / s, p0, p1, p2, m - input_limit * s, m + input_limit * s};
            for (int j = 0; j < 7; ++j) all[j * channels + c] = column[j];
        }
        return all;
    }

    // Gradients of the coefficients from the sums of every thread over those of p0, p1, p2.
    void coefficient_grad(const std::vector<double>& sums, float* grad) const {
        std::vector<double> total((degree + 1) * polynomials, 0.0);
        for (i64 i = 0; i < static_cast<i64>(sums.size()); i += 3 * channels)
            for (i64 c = 0; c < channels; ++c) {
                const double* g = sums.data() + i + c;
                const double s = deviation[of(c)];
                total[of(c)] += s * g[0];
                total[polynomials + of(c)] += s * g[channels];
                if (degree == 2)
                    total[2 * polynomials + of(c)] += s * (g[2 * channels] - g[0]) / (1 + std::exp(-row(2, c)));
            }
        for (i64 i = 0; i < static_cast<i64>(total.size()); ++i) grad[i] = static_cast<float>(total[i]);
    }

    // Mask or gate in the memory order of an image, empty where there is none; a gradient back with channels first.
    template <class To, class From>
    std::vector<To> image_of(const From* numbers, bool last) const {
        std::vector<To> image(numbers ? channels * positions : 0);
        if (last && numbers) transpose(numbers, channels, positions, image.data());
        else std::copy_n(numbers, image.size(), image.data());
        return image;
    }
    void channels_first(const std::vector<float>& image, bool last, float* to) const {
        if (last) transpose(image.data(), positions, channels, to);
        else std::copy_n(image.data(), image.size(), to);
    }
};

// Writes X, and the sum of the range penalty of every image.
void masked_forward(std::uintptr_t mask, std::uintptr_t gate, std::uintptr_t mean, std::uintptr_t deviation,
                    std::uintptr_t coefficients,
                    i64 images, i64 channels, i64 positions, i64 polynomials, int degree, bool last, bool half,
                    float cap, float range_limit, float input_limit, float slope_limit, int threads,
                    std::uintptr_t z, std::uintptr_t out, std::uintptr_t range_sum) {
    const Site site{pointer<std::uint8_t>(mask), pointer<float>(gate), pointer<float>(mean), pointer<float>(deviation),
                    pointer<float>(coefficients), channels, positions, polynomials, degree};
    const auto image_mask = site.image_of<std::int32_t>(site.mask, last);
    const auto image_gate = site.image_of<float>(site.gate, last);
    const auto numbers = site.numbers(input_limit);
    const i64 rows = last ? positions : channels;
    const int parts = parts_of(rows, images * channels * positions, threads);
    std::vector<double> sums(parts * images, 0.0);
    const Call call{pointer<void>(z), nullptr, pointer<void>(out), image_mask.data(),
                    gate ? image_gate.data() : nullptr, numbers.data(), nullptr, nullptr, sums.data(), nullptr,
                    images, channels, positions, cap, range_limit, slope_limit};
    run(call, half ? pick<Bfloat16>(last, false) : pick<float>(last, false), rows, parts);
    for (i64 n = 0; n < images; ++n) {
        double total = 0;
        for (int part = 0; part < parts; ++part) total += sums[part * images + n];
        pointer<float>(range_sum)[n] = static_cast<float>(total);
    }
}

// `mask_grad` may be null when nobody wants it.
void masked_backward(std::uintptr_t mask, std::uintptr_t gate, std::uintptr_t mean, std::uintptr_t deviation,
                     std::uintptr_t coefficients,
                     i64 images, i64 channels, i64 positions, i64 polynomials, int degree, bool last, bool half,
                     float cap, float range_limit, float input_limit, float slope_limit, int threads,
                     std::uintptr_t z, std::uintptr_t out_grad, std::uintptr_t range_grad, std::uintptr_t z_grad,
                     std::uintptr_t mask_grad, std::uintptr_t coefficient_grad) {
    const Site site{pointer<std::uint8_t>(mask), pointer<float>(gate), pointer<float>(mean), pointer<float>(deviation),
                    pointer<float>(coefficients), channels, positions, polynomials, degree};
    const auto image_mask = site.image_of<std::int32_t>(site.mask, last);
    const auto image_gate = site.image_of<float>(site.gate, last);
    const auto numbers = site.numbers(input_limit);
    const i64 rows = last ? positions : channels;
    const int parts = parts_of(rows, images * channels * positions, threads);
    std::vector<double> sums(3 * channels * parts, 0.0);
    std::vector<float> image_grad(mask_grad ? channels * positions : 0, 0.0f);
    const Call call{pointer<void>(z), pointer<void>(out_grad), pointer<void>(z_grad), image_mask.data(),
                    gate ? image_gate.data() : nullptr, numbers.data(), mask_grad ? image_grad.data() : nullptr,
                    sums.data(), nullptr, pointer<float>(range_grad), images, channels, positions, cap, range_limit,
                    slope_limit};
    run(call, half ? pick<Bfloat16>(last, true) : pick<float>(last, true), rows, parts);
    site.coefficient_grad(sums, pointer<float>(coefficient_grad));
    if (mask_grad) site.channels_first(image_grad, last, pointer<float>(mask_grad));
}

}  // namespace

void register_masked_activation(nb::module_& m) {
    m.def("masked_forward", &masked_forward, NoGil());
    m.def("masked_backward", &masked_backward, NoGil());
}

}  // namespace autorep
