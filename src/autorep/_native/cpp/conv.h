// What the convolution needs from one instruction set.
//
// Inside a convolution images lie pixel by pixel: [row][column][channel], channels padded to a multiple of 8
// with zeros, the border of zeros included. Weights lie in blocks of up to 32 output channels ("lanes"):
// [block][tap][input channel][lane]. So a step of the innermost kernel is lanes += weight[lanes] * one word of
// the image, whatever the stride, dilation or kernel, and no patch matrix is ever built.
#pragma once
#include "common.h"

namespace autorep {

constexpr int kLane = 8;        // words of a vector in every layout, also where registers are narrower
constexpr int kMaxVectors = 4;  // vectors of a weight block
constexpr int kMaxRows = 12;    // pixels the innermost kernel may take together

static inline i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }

// Where 64-bit products are slow, words are cut into three limbs and 16-bit products are summed instead:
// x = x0 + 2^15 x1 + 2^31 x2 modulo 2^46, with signed x0 of 15 bits and x1 of 16; the third limb is kept doubled, 2 x2 of
// 16 bits. A pair of channels of a pixel takes the place of its two words: (x0, x1, 2 x2, nothing), each for the two
// channels. Weights lie [block][tap][pair][limb][lane][2]; their w0 lies in (-2^14, 2^14], an image's x0 in [-2^14, 2^14).
constexpr int kLimbBits = 46;
constexpr int kLimbs = 3;
constexpr i64 kPairWords = kLimbs * kLane * 2 / 4;  // words of the weights of a pair of channels, for one vector

// Where a kernel for them exists, weights that are read from memory anew for every image lie as words of six bytes instead
// of eight, if their ring has so few bits: a quarter less to read and to hold.
constexpr int kShortBits = 48;
constexpr i64 kShortBytes = kShortBits / 8;

struct Limbs {
    std::int16_t low, middle, high;
};
static inline Limbs limbs_of_weight(u64 w) {
    const u64 t = w + (u64(1) << 14) - 1, y = t >> 15;
    return {static_cast<std::int16_t>(static_cast<int>(t & 0x7FFF) - 0x3FFF), static_cast<std::int16_t>(y & 0xFFFF),
            static_cast<std::int16_t>(((y + 0x8000) >> 15) & 0xFFFE)};
}

// One call of the innermost kernel: `rows` pixels times `vectors` vectors of output channels,
//   sums[r][lane] (+)= sum over taps t and channels c of image[r * image_row + taps[t] + c] * weight[t][c][lane].
struct MicroTask {
    const u64* weight;
    const u64* image;
    i64 image_row;
    const i64* taps;
    i64 tap_count;
    i64 channels;
    u64* sums;
    i64 sums_row;
    bool accumulate;
    const u64* prefetch;  // weights of later calls, to be fetched meanwhile:
    i64 fetched;          // so many words for every tap and channel; of limbs always as many as the call reads
};

using Micro = void (*)(const MicroTask&);

// out[pixel][channel] = sum over taps of image[pixel * image_row + taps[t] + channel] * weight[t][channel]
using Depthwise = void (*)(const u64* weight, const u64* image, i64 image_row, const i64* taps, i64 tap_count,
                           i64 channels, i64 count, u64* out, i64 out_row);

// A Winograd tile F(side x side) has (side+2)^2 positions. A tile of side 3 may be one output shorter in either direction:
// it is F(2, 3) there, on the weights of the first four positions, and the last position is not in it.
struct TileShape {
    int side;
    bool tall, wide;  // of whole length; always, unless the side is 3
};

// Where a tile's positions lie: `stride` apart, from there `at[last row of positions][last column of positions]`, since
// the last positions are those of fewer tiles.
struct TilePlaces {
    i64 stride;
    i64 at[2][2];

    i64 of(int n, int i, int j) const { return (i * n + j) * stride + at[i == n - 1][j == n - 1]; }
};

// One tile, all channels. In: pixels, image_row words from one row of them to the next, to positions of [channel]. Out: the
// reverse, to pixels of which `rows` x `columns` are stored, exactly divided by the transform's power of two.
using TileIn = void (*)(const TileShape& tile, const u64* image, i64 image_row, i64 pixel_stride, i64 channels,
                        u64* positions, const TilePlaces& places);
using TileOut = void (*)(const TileShape& tile, const u64* positions, const TilePlaces& places, i64 channels, u64* image,
                         i64 image_row, i64 pixel_stride, i64 rows, i64 columns);

struct ConvKernels {
    int max_rows[kMaxVectors + 1];                     // by number of vectors
    Micro exact52[kMaxVectors + 1][kMaxRows + 1];      // correct modulo 2^52
    Micro exact64[kMaxVectors + 1][kMaxRows + 1];      // correct modulo 2^64
    // Correct modulo 2^48, weights of six bytes, of which it may read 16 bytes beyond the last; null where there is none.
    Micro exact48[kMaxVectors + 1][kMaxRows + 1];
    // planes[channel][pixel] (plane_stride apart) -> pixels[pixel][channel] (pixel_stride apart), channels padded
    // to a multiple of 8 with zeros; and back, without the padding, added to what is there if `add`, and to a number a
    // channel where `bias` is not null.
    void (*to_pixels)(const u64* planes, i64 plane_stride, i64 channels, i64 count, u64* pixels, i64 pixel_stride);
    void (*to_planes)(const u64* pixels, i64 pixel_stride, i64 channels, i64 count, u64* planes, i64 plane_stride, bool add,
                      const u64* bias);
    Depthwise depthwise52, depthwise64;
    // All null where words are multiplied faster as they are: `split` turns words into limbs in place, `tile_in_limbs` is
    // `tile_in` with limbs for a result, `limbs` sums products of one vector of output channels (channels in pairs),
    // correct modulo 2^46.
    void (*split)(u64* pixels, i64 words);
    TileIn tile_in_limbs;
    Micro limbs[kMaxRows + 1];
    int limb_rows;
    TileIn tile_in;
    TileOut tile_out;
};

const ConvKernels& conv_kernels_portable();
const ConvKernels& conv_kernels_avx2();
const ConvKernels& conv_kernels_avx512();
const ConvKernels& conv_kernels();  // of the active level

}  // namespace autorep
