// The masked activation of training: X = mask·min(relu(Z), cap) + (1 − mask)·poly((Z − mean)/std), forward and backward
// in one pass each over the batch. Tensors arrive as addresses, in float32 or bfloat16, because torch's bfloat16 has no
// numpy type; arithmetic and sums are in float32, sums over images in double. The Python face checks shapes and layouts.
// Z is first held between the channel's low and high; gradients pass as if it had been there from the start.
#include <algorithm>
#include <cstring>
#include <functional>
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
// `positions`; mask and mask_grad are laid out like an image. Rows of `channel` are mean, 1/std, p0, p1, p2, low,
// high.
struct Call {
    const void* z;
    const void* out_grad;      // null in the forward pass
    void* out;                 // X, or the gradient of Z
    const std::int32_t* mask;  // as wide as a float, so that a block of it is one register
    const float* channel;
    float* mask_grad;   // null when aux does not train
    double* term_grad;  // per thread 3 rows of `channels`
    double* range_sum;  // per thread one number; forward only
    i64 images, channels, positions;
    float cap;
    float range_limit;  // infinity when no range penalty is collected
    float range_grad;
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

void run(const Call& call, Kernel kernel, i64 rows, int parts) {
    std::vector<std::thread> helpers;
    for (int part = 1; part < parts; ++part)
        helpers.emplace_back(kernel, std::cref(call), rows * part / parts, rows * (part + 1) / parts, part);
    kernel(call, 0, rows / parts, 0);
    for (auto& helper : helpers) helper.join();
}

template <class P>
P* pointer(std::uintptr_t address) {
    return reinterpret_cast<P*>(address);
}

// Returns the sum of the range penalty.
double masked_forward(std::uintptr_t z, std::uintptr_t out, std::uintptr_t mask, std::uintptr_t channel, i64 images,
                      i64 channels, i64 positions, bool last, bool half, float cap, float range_limit, int threads) {
    const i64 rows = last ? positions : channels;
    const int parts = parts_of(rows, images * channels * positions, threads);
    std::vector<double> sums(parts, 0.0);
    const Call call{pointer<void>(z), nullptr, pointer<void>(out), pointer<std::int32_t>(mask),
                    pointer<float>(channel), nullptr, nullptr, sums.data(), images, channels, positions, cap,
                    range_limit, 0.0f};
    run(call, half ? pick<Bfloat16>(last, false) : pick<float>(last, false), rows, parts);
    double total = 0;
    for (double sum : sums) total += sum;
    return total;
}

void masked_backward(std::uintptr_t z, std::uintptr_t out_grad, std::uintptr_t z_grad, std::uintptr_t mask,
                     std::uintptr_t channel, std::uintptr_t mask_grad, std::uintptr_t term_grad, i64 images,
                     i64 channels, i64 positions, bool last, bool half, float cap, float range_limit, float range_grad,
                     int threads) {
    const i64 rows = last ? positions : channels;
    const int parts = parts_of(rows, images * channels * positions, threads);
    std::vector<double> sums(3 * channels * parts, 0.0);
    const Call call{pointer<void>(z), pointer<void>(out_grad), pointer<void>(z_grad), pointer<std::int32_t>(mask),
                    pointer<float>(channel), pointer<float>(mask_grad), sums.data(), nullptr, images, channels,
                    positions, cap, range_limit, range_grad};
    run(call, half ? pick<Bfloat16>(last, true) : pick<float>(last, true), rows, parts);
    float* grad = pointer<float>(term_grad);
    for (i64 i = 0; i < 3 * channels; ++i) {
        double total = 0;
        for (int part = 0; part < parts; ++part) total += sums[3 * channels * part + i];
        grad[i] = static_cast<float>(total);
    }
}

}  // namespace

void register_masked_activation(nb::module_& m) {
    m.def("masked_forward", &masked_forward, NoGil());
    m.def("masked_backward", &masked_backward, NoGil());
}

}  // namespace autorep
