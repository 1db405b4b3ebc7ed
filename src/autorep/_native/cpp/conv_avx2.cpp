// Convolution kernels for AVX2: sums of 16-bit products of limbs up to 46 bits, above a 64-bit product from three of 32.
#include "common.h"

#if AUTOREP_X86
#include <immintrin.h>

#include <cstring>

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

// Four words to their limbs: pairs of channels interleaved, see conv.h.
__m256i split_words(__m256i x) {
    const auto all = [](long long value) { return _mm256_set1_epi64x(value); };
    const __m256i t = _mm256_add_epi64(x, all(1 << 14)), y = _mm256_srli_epi64(t, 15);
    const __m256i low = _mm256_and_si256(_mm256_sub_epi64(_mm256_and_si256(t, all(0x7FFF)), all(0x4000)), all(0xFFFF));
    const __m256i middle = _mm256_slli_epi64(_mm256_and_si256(y, all(0xFFFF)), 16);
    const __m256i high = _mm256_and_si256(_mm256_slli_epi64(_mm256_add_epi64(y, all(0x8000)), 17), all(0xFFFE00000000ll));
    const __m256i by_limb = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    return _mm256_shuffle_epi8(_mm256_or_si256(_mm256_or_si256(low, middle), high), by_limb);
}

void split(u64* pixels, i64 words) {
    for (i64 i = 0; i < words; i += 4) {
        auto* at = reinterpret_cast<__m256i*>(pixels + i);
        _mm256_storeu_si256(at, split_words(_mm256_loadu_si256(at)));
    }
}

struct StoreLimbs {
    static void put(u64* to, Lanes x) {
        __m256i halves[2];
        std::memcpy(halves, &x, sizeof halves);
        for (int half = 0; half < 2; ++half) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + half, split_words(halves[half]));
    }
};

// sum += x . w, in place. Compilers regroup the sums otherwise, and then run out of registers: twelve sums, two weights, an
// image word and a product are all there are.
inline void accumulate(__m256i& sum, __m256i x, __m256i w) {
    __m256i product;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(x), "x"(w));
}
inline void accumulate(__m256i& sum, __m256i x, const __m256i* w) {
    __m256i product;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(x), "m"(*w));
}

// x*w = x0 w0 + 2^15 (x0 w1 + x1 w0) + 2^30 (x1 w1 + x0 (2 w2) + (2 x2) w0) modulo 2^46. The last sum is needed modulo
// 2^16 and the one before modulo 2^31, so both may wrap; the first hands its carry on before it can overflow.
// One pixel's sums, as variables of their own for the sake of registers: pixels follow each other in `others`.
template <int Rows>
struct LimbSums {
    __m256i low = _mm256_setzero_si256(), middle = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    LimbSums<Rows - 1> others;

    inline void add(const int* image, i64 row, __m256i w0, __m256i w1, const __m256i* w2) {
        const __m256i x0 = _mm256_set1_epi32(image[0]);
        accumulate(high, x0, w2);
        accumulate(low, x0, w0);
        accumulate(middle, x0, w1);
        const __m256i x1 = _mm256_set1_epi32(image[1]);
        accumulate(middle, x1, w0);
        accumulate(high, x1, w1);
        const __m256i x2 = _mm256_set1_epi32(image[2]);
        accumulate(high, x2, w0);
        others.add(image + row, row, w0, w1, w2);
    }

    inline void carry() {
        middle = _mm256_add_epi32(middle, _mm256_srai_epi32(low, 15));
        low = _mm256_and_si256(low, _mm256_set1_epi32(0x7FFF));
        others.carry();
    }

    inline void finish(const MicroTask& task, u64* to) const {
        const __m256i upper = _mm256_add_epi32(middle, _mm256_slli_epi32(high, 15));  // modulo 2^32, needed modulo 2^31
        for (int half = 0; half < 2; ++half) {
            const auto wide = [&](__m256i x) {
                return _mm256_cvtepu32_epi64(half ? _mm256_extracti128_si256(x, 1) : _mm256_castsi256_si128(x));
            };
            auto* at = reinterpret_cast<__m256i*>(to + 4 * half);
            __m256i sum = _mm256_add_epi64(wide(low), _mm256_slli_epi64(wide(upper), 15));
            if (task.accumulate) sum = _mm256_add_epi64(sum, _mm256_loadu_si256(at));
            _mm256_storeu_si256(at, sum);
        }
        others.finish(task, to + task.sums_row);
    }
};
template <>
struct LimbSums<0> {
    inline void add(const int*, i64, __m256i, __m256i, const __m256i*) {}
    inline void carry() {}
    inline void finish(const MicroTask&, u64*) const {}
};

template <int Rows>
void limb_micro(const MicroTask& task) {
    constexpr i64 kCarry = 4;  // pairs of products of -2^28 .. 2^28 - 2^14 that fit a signed 32-bit sum beside 15 bits left there
    LimbSums<Rows> sums;
    const auto* weight = reinterpret_cast<const __m256i*>(task.weight);
    const auto* prefetch = reinterpret_cast<const char*>(task.prefetch);
    const i64 pairs = ceil_div(task.channels, 2), row = 2 * task.image_row;
    for (i64 t = 0; t < task.tap_count; ++t) {
        const auto* image = reinterpret_cast<const int*>(task.image + task.taps[t]);
        for (i64 left = pairs; left > 0; left -= kCarry) {
            const i64 here = left < kCarry ? left : kCarry;
            for (i64 p = 0; p < here; ++p, weight += kLimbs, image += 4)
                sums.add(image, row, _mm256_loadu_si256(weight), _mm256_loadu_si256(weight + 1), weight + 2);
            sums.carry();
            for (int line = 0; line < 6; ++line, prefetch += 64) _mm_prefetch(prefetch, _MM_HINT_T1);
        }
    }
    sums.finish(task, task.sums);
}

void transpose(__m256i (&x)[4]) {
    const __m256i even = _mm256_unpacklo_epi64(x[0], x[1]), odd = _mm256_unpackhi_epi64(x[0], x[1]);
    const __m256i next_even = _mm256_unpacklo_epi64(x[2], x[3]), next_odd = _mm256_unpackhi_epi64(x[2], x[3]);
    x[0] = _mm256_permute2x128_si256(even, next_even, 0x20);
    x[1] = _mm256_permute2x128_si256(odd, next_odd, 0x20);
    x[2] = _mm256_permute2x128_si256(even, next_even, 0x31);
    x[3] = _mm256_permute2x128_si256(odd, next_odd, 0x31);
}

__m256i four(const u64* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// Four channels of four pixels at a time; what is left of a line, and of channels in eights, goes word by word.
void to_pixels(const u64* planes, i64 plane_stride, i64 channels, i64 count, u64* pixels, i64 pixel_stride) {
    const i64 eights = channels / kLane * kLane, fours = count / 4 * 4;
    for (i64 c = 0; c < eights; c += 4)
        for (i64 p = 0; p < fours; p += 4) {
            __m256i block[4];
            for (i64 k = 0; k < 4; ++k) block[k] = four(planes + (c + k) * plane_stride + p);
            transpose(block);
            for (i64 k = 0; k < 4; ++k)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(pixels + (p + k) * pixel_stride + c), block[k]);
        }
    to_pixels_blocked(planes + fours, plane_stride, eights, count - fours, pixels + fours * pixel_stride, pixel_stride);
    to_pixels_blocked(planes + eights * plane_stride, plane_stride, channels - eights, count, pixels + eights,
                      pixel_stride);
}

void to_planes(const u64* pixels, i64 pixel_stride, i64 channels, i64 count, u64* planes, i64 plane_stride, bool add,
               const u64* bias) {
    const i64 whole = channels / 4 * 4, fours = count / 4 * 4;
    for (i64 c = 0; c < whole; c += 4)
        for (i64 p = 0; p < fours; p += 4) {
            __m256i block[4];
            for (i64 k = 0; k < 4; ++k) block[k] = four(pixels + (p + k) * pixel_stride + c);
            transpose(block);
            for (i64 k = 0; k < 4; ++k) {
                u64* to = planes + (c + k) * plane_stride + p;
                if (add) block[k] = _mm256_add_epi64(block[k], four(to));
                const __m256i more = _mm256_set1_epi64x(bias ? static_cast<long long>(bias[c + k]) : 0);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_add_epi64(block[k], more));
            }
        }
    to_planes_blocked(pixels + fours * pixel_stride, pixel_stride, whole, count - fours, planes + fours, plane_stride,
                      add, bias);
    to_planes_blocked(pixels + whole, pixel_stride, channels - whole, count, planes + whole * plane_stride, plane_stride,
                      add, bias ? bias + whole : nullptr);
}

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
    kernels.split = split;
    kernels.limbs[1] = limb_micro<1>;
    kernels.limbs[2] = limb_micro<2>;
    kernels.limbs[3] = limb_micro<3>;
    kernels.limbs[4] = limb_micro<4>;
    kernels.limb_rows = 4;
    kernels.to_pixels = to_pixels;
    kernels.to_planes = to_planes;
    kernels.depthwise52 = kernels.depthwise64 = depthwise<FullProduct>;
    kernels.tile_in = tile_in<StoreWords>;
    kernels.tile_in_limbs = tile_in<StoreLimbs>;
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
