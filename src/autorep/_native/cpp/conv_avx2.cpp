// Convolution kernels for AVX2: a 64-bit product from three 32-bit ones.
#include "common.h"

#if AUTOREP_X86
#include <immintrin.h>

#include "lanes.h"

namespace autorep {
namespace {

// x*w mod 2^64 = xl*wl + 2^32 (xl*wh + xh*wl). The two parts are summed apart and joined once at the end.
template <int Vectors, int Rows>
struct SplitMicro {
    static void run(const MicroTask& task) {
        constexpr i64 width = Vectors * kLane;
        for (int part = 0; part < width; part += 4) {
            __m256i low[Rows], cross[Rows];
            for (int r = 0; r < Rows; ++r) low[r] = cross[r] = _mm256_setzero_si256();
            const u64* weight = task.weight + part;
            for (i64 t = 0; t < task.tap_count; ++t) {
                const u64* image = task.image + task.taps[t];
                for (i64 c = 0; c < task.channels; ++c, weight += width) {
                    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
                    const __m256i w_high = _mm256_srli_epi64(w, 32);
                    for (int r = 0; r < Rows; ++r) {
                        const long long word = static_cast<long long>(image[r * task.image_row + c]);
                        const __m256i x = _mm256_set1_epi64x(word);
                        const __m256i x_high = _mm256_shuffle_epi32(x, 0xF5);
                        low[r] = _mm256_add_epi64(low[r], _mm256_mul_epu32(x, w));
                        cross[r] = _mm256_add_epi64(cross[r], _mm256_mul_epu32(x, w_high));
                        cross[r] = _mm256_add_epi64(cross[r], _mm256_mul_epu32(x_high, w));
                    }
                }
            }
            for (int r = 0; r < Rows; ++r) {
                auto* to = reinterpret_cast<__m256i*>(task.sums + r * task.sums_row + part);
                __m256i sum = _mm256_add_epi64(low[r], _mm256_slli_epi64(cross[r], 32));
                if (task.accumulate) sum = _mm256_add_epi64(sum, _mm256_loadu_si256(to));
                _mm256_storeu_si256(to, sum);
            }
        }
    }
};

ConvKernels make() {
    constexpr int kRows = 4;
    ConvKernels kernels = {};
    fill_rows<SplitMicro, 1, kRows>(kernels.exact64);
    fill_rows<SplitMicro, 2, kRows>(kernels.exact64);
    fill_rows<SplitMicro, 3, kRows>(kernels.exact64);
    fill_rows<SplitMicro, 4, kRows>(kernels.exact64);
    for (int v = 1; v <= kMaxVectors; ++v) {
        kernels.max_rows[v] = kRows;
        for (int r = 1; r <= kRows; ++r) kernels.exact52[v][r] = kernels.exact64[v][r];
    }
    kernels.to_pixels = to_pixels_blocked;
    kernels.to_planes = to_planes_blocked;
    kernels.depthwise52 = kernels.depthwise64 = depthwise<FullProduct>;
    kernels.tile_in = tile_in;
    kernels.tile_out = tile_out;
    return kernels;
}

}  // namespace

const ConvKernels& conv_kernels_avx2() {
    static const ConvKernels kernels = make();
    return kernels;
}

}  // namespace autorep
#endif
