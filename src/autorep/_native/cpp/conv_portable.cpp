// Convolution kernels in plain C++.
#include "lanes.h"

namespace autorep {
namespace {

template <int Vectors, int Rows>
struct PlainMicro {
    static void run(const MicroTask& task) {
        constexpr i64 width = Vectors * kLane;
        constexpr int kPart = 4;  // lanes x rows that fit the general registers
        for (int part = 0; part < width; part += kPart) {
            u64 sums[Rows][kPart];
            for (int r = 0; r < Rows; ++r)
                for (int k = 0; k < kPart; ++k)
                    sums[r][k] = task.accumulate ? task.sums[r * task.sums_row + part + k] : 0;
            const u64* weight = task.weight + part;
            for (i64 t = 0; t < task.tap_count; ++t) {
                const u64* image = task.image + task.taps[t];
                for (i64 c = 0; c < task.channels; ++c, weight += width)
                    for (int r = 0; r < Rows; ++r) {
                        const u64 x = image[r * task.image_row + c];
                        for (int k = 0; k < kPart; ++k) sums[r][k] += x * weight[k];
                    }
            }
            for (int r = 0; r < Rows; ++r)
                for (int k = 0; k < kPart; ++k) task.sums[r * task.sums_row + part + k] = sums[r][k];
        }
    }
};

ConvKernels make() {
    ConvKernels kernels = {};
    fill_rows<PlainMicro, 1, 2>(kernels.exact64);
    fill_rows<PlainMicro, 2, 2>(kernels.exact64);
    fill_rows<PlainMicro, 3, 2>(kernels.exact64);
    fill_rows<PlainMicro, 4, 2>(kernels.exact64);
    for (int v = 1; v <= kMaxVectors; ++v) {
        kernels.max_rows[v] = 2;
        for (int r = 1; r <= 2; ++r) kernels.exact52[v][r] = kernels.exact64[v][r];
    }
    kernels.to_pixels = to_pixels_blocked;
    kernels.to_planes = to_planes_blocked;
    kernels.depthwise52 = kernels.depthwise64 = depthwise<FullProduct>;
    kernels.tile_in = tile_in<StoreWords>;
    kernels.tile_out = tile_out;
    return kernels;
}

}  // namespace

const ConvKernels& conv_kernels_portable() {
    static const ConvKernels kernels = make();
    return kernels;
}

}  // namespace autorep
