// Convolution kernels for AVX-512: 52-bit multiply-add (IFMA) for rings of at most 52 bits, vpmullq above.
#include "common.h"

#if AUTOREP_X86
#include "avx512.h"
#include "lanes.h"

namespace autorep {
namespace {

// Adds the low 52 bits of x*w: exact modulo 2^52, since what the instruction drops is a multiple of 2^52.
struct Ifma {
    static __m512i multiply_add(__m512i sum, __m512i x, __m512i w) { return _mm512_madd52lo_epu64(sum, x, w); }
};
struct Full {
    static __m512i multiply_add(__m512i sum, __m512i x, __m512i w) {
        return _mm512_add_epi64(sum, _mm512_mullo_epi64(x, w));
    }
};

struct IfmaLanes {
    static Lanes multiply_add(Lanes sum, Lanes x, Lanes w) {
        return reinterpret_cast<Lanes>(Ifma::multiply_add(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(x),
                                                          reinterpret_cast<__m512i>(w)));
    }
};

// Eight weights of eight or of six bytes; `kWords` is what they take.
struct WholeWeights {
    static constexpr i64 kWords = kLane;
    static __m512i load(const u64* from) { return _mm512_loadu_si512(from); }
};
struct ShortWeights {
    static constexpr i64 kWords = kShortBytes;
    static __m512i load(const u64* from) {
        const __m512i places = _mm512_set_epi64(0x2F2E2D2C2B2A, 0x292827262524, 0x232221201F1E, 0x1D1C1B1A1918,
                                                0x171615141312, 0x11100F0E0D0C, 0x0B0A09080706, 0x050403020100);
        return _mm512_maskz_permutexvar_epi8(0x3F3F3F3F3F3F3F3F, places, _mm512_loadu_si512(from));
    }
};

template <class Arithmetic, class Weights, int Vectors, int Rows>
struct Micro512 {
    static void run(const MicroTask& task) {
        constexpr i64 kStep = Vectors * Weights::kWords;
        __m512i sums[Rows][Vectors];
        for (int r = 0; r < Rows; ++r)
            for (int v = 0; v < Vectors; ++v)
                sums[r][v] = task.accumulate ? _mm512_loadu_si512(task.sums + r * task.sums_row + v * kLane)
                                             : _mm512_setzero_si512();
        const u64* weight = task.weight;
        const u64* prefetch = task.prefetch;
        const i64 row = task.image_row, fetched = task.fetched;
        for (i64 t = 0; t < task.tap_count; ++t) {
            const u64* image = task.image + task.taps[t];
            for (i64 c = 0; c < task.channels; ++c, weight += kStep, prefetch += fetched, ++image) {
                for (i64 at = 0; at < fetched; at += kLane) _mm_prefetch(reinterpret_cast<const char*>(prefetch + at), _MM_HINT_T1);
                __m512i w[Vectors];
                for (int v = 0; v < Vectors; ++v) w[v] = Weights::load(weight + v * Weights::kWords);
                for (int r = 0; r < Rows; ++r) {
                    const __m512i x = _mm512_set1_epi64(static_cast<long long>(image[r * row]));
                    for (int v = 0; v < Vectors; ++v) sums[r][v] = Arithmetic::multiply_add(sums[r][v], x, w[v]);
                }
            }
        }
        for (int r = 0; r < Rows; ++r)
            for (int v = 0; v < Vectors; ++v) _mm512_storeu_si512(task.sums + r * task.sums_row + v * kLane, sums[r][v]);
    }
};

template <int Vectors, int Rows>
using IfmaMicro = Micro512<Ifma, WholeWeights, Vectors, Rows>;
template <int Vectors, int Rows>
using ShortMicro = Micro512<Ifma, ShortWeights, Vectors, Rows>;
template <int Vectors, int Rows>
using FullMicro = Micro512<Full, WholeWeights, Vectors, Rows>;

void to_pixels(const u64* planes, i64 plane_stride, i64 channels, i64 count, u64* pixels, i64 pixel_stride) {
    for (i64 c = 0; c < channels; c += kLane)
        for (i64 p = 0; p < count; p += kLane) {
            const __mmask8 wanted = first_words(count - p);
            __m512i block[8];
            for (i64 k = 0; k < kLane; ++k)
                block[k] = c + k < channels ? _mm512_maskz_loadu_epi64(wanted, planes + (c + k) * plane_stride + p)
                                            : _mm512_setzero_si512();
            transpose_words(block);
            for (i64 i = 0; i < kLane; ++i)
                if (p + i < count) _mm512_storeu_si512(pixels + (p + i) * pixel_stride + c, block[i]);
        }
}

void to_planes(const u64* pixels, i64 pixel_stride, i64 channels, i64 count, u64* planes, i64 plane_stride, bool add,
               const u64* bias) {
    for (i64 c = 0; c < channels; c += kLane)
        for (i64 p = 0; p < count; p += kLane) {
            const __mmask8 wanted = first_words(count - p);
            __m512i block[8];
            for (i64 i = 0; i < kLane; ++i)
                block[i] = p + i < count ? _mm512_loadu_si512(pixels + (p + i) * pixel_stride + c)
                                         : _mm512_setzero_si512();
            transpose_words(block);
            for (i64 k = 0; k < kLane && c + k < channels; ++k) {
                u64* to = planes + (c + k) * plane_stride + p;
                if (add) block[k] = _mm512_add_epi64(block[k], _mm512_maskz_loadu_epi64(wanted, to));
                if (bias) block[k] = _mm512_add_epi64(block[k], _mm512_set1_epi64(static_cast<long long>(bias[c + k])));
                _mm512_mask_storeu_epi64(to, wanted, block[k]);
            }
        }
}

template <template <int, int> class Kernel>
void fill(Micro (&table)[kMaxVectors + 1][kMaxRows + 1]) {
    fill_rows<Kernel, 1, 12>(table);
    fill_rows<Kernel, 2, 12>(table);
    fill_rows<Kernel, 3, 8>(table);
    fill_rows<Kernel, 4, 6>(table);
}

ConvKernels make() {
    ConvKernels kernels = {};
    kernels.max_rows[1] = kernels.max_rows[2] = 12;
    kernels.max_rows[3] = 8;
    kernels.max_rows[4] = 6;
    fill<IfmaMicro>(kernels.exact52);
    fill<ShortMicro>(kernels.exact48);
    fill<FullMicro>(kernels.exact64);
    kernels.to_pixels = to_pixels;
    kernels.to_planes = to_planes;
    kernels.depthwise52 = depthwise<IfmaLanes>;
    kernels.depthwise64 = depthwise<FullProduct>;
    kernels.tile_in = tile_in<StoreWords>;
    kernels.tile_out = tile_out;
    return kernels;
}

}  // namespace

const ConvKernels& conv_kernels_avx512() {
    static const ConvKernels kernels = make();
    return kernels;
}

}  // namespace autorep
#endif
