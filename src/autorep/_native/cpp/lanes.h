// Eight ring words that are added, shifted and multiplied together, and the kernels written with them once.
//
// Every instruction-set file includes this with its own compiler flags; all is in an unnamed namespace so that
// the linker never mixes versions. No standard library header may be included here for the same reason.
#pragma once
#include "conv.h"

namespace autorep {
namespace {

#if defined(__GNUC__)
typedef u64 Lanes __attribute__((vector_size(64), aligned(8), may_alias));
inline Lanes load(const u64* p) { return *reinterpret_cast<const Lanes*>(p); }
inline void store(u64* p, Lanes x) { *reinterpret_cast<Lanes*>(p) = x; }
#else
struct Lanes {
    u64 v[kLane];
};
inline Lanes load(const u64* p) {
    Lanes x;
    for (int i = 0; i < kLane; ++i) x.v[i] = p[i];
    return x;
}
inline void store(u64* p, Lanes x) {
    for (int i = 0; i < kLane; ++i) p[i] = x.v[i];
}
inline Lanes operator+(Lanes a, Lanes b) {
    for (int i = 0; i < kLane; ++i) a.v[i] += b.v[i];
    return a;
}
inline Lanes operator-(Lanes a, Lanes b) {
    for (int i = 0; i < kLane; ++i) a.v[i] -= b.v[i];
    return a;
}
inline Lanes operator*(Lanes a, Lanes b) {
    for (int i = 0; i < kLane; ++i) a.v[i] *= b.v[i];
    return a;
}
inline Lanes operator<<(Lanes a, int by) {
    for (int i = 0; i < kLane; ++i) a.v[i] <<= by;
    return a;
}
inline Lanes operator>>(Lanes a, int by) {
    for (int i = 0; i < kLane; ++i) a.v[i] >>= by;
    return a;
}
#endif

// Input transform B^T of F(4,3) along one line of six: t = B^T d, at the points 0, 1, -1, 2, 1/2 and infinity. Modulo 2
// the projective line has three points, and above each of them lie two of these: so every denominator is twice an odd
// number, and exactness takes one bit more a direction. With -2 in the place of 1/2 it would take three.
inline void transform_in(const Lanes (&d)[6], Lanes (&t)[6]) {
    const Lanes even = d[4] - d[2], odd = d[3] - d[1];
    const Lanes outer = d[4] + d[1], inner = d[3] + d[2], inner_difference = d[2] - d[3];
    t[0] = ((d[0] - d[4] + (odd << 1)) << 1) + odd;
    t[1] = inner - ((outer - inner) << 1);
    t[2] = ((d[4] - d[1] + (inner_difference << 2)) << 1) - inner_difference;
    t[3] = (even << 1) - odd;
    t[4] = even - (odd << 1);
    t[5] = ((d[5] - d[1] - (even << 1)) << 1) - even;
}

// Output transform A^T of F(4,3): y = A^T m.
inline void transform_out(const Lanes (&m)[6], Lanes (&y)[4]) {
    const Lanes sum = m[1] + m[2], difference = m[1] - m[2];
    const Lanes two = m[3] << 1, half = m[4] << 1;
    y[0] = m[0] + sum + m[3] + (half << 2);
    y[1] = difference + two + (half << 1);
    y[2] = sum + (two << 1) + half;
    y[3] = difference + (two << 2) + m[4] + m[5];
}

// The same for F(3,3), at the points 0, 1, -1, infinity and 2; weights hold what is divided by (packed_conv.cpp).
inline void transform_in(const Lanes (&d)[5], Lanes (&t)[5]) {
    const Lanes odd = d[3] - d[1];
    t[0] = ((d[0] - d[2]) << 1) + odd;
    t[1] = (d[1] << 1) + (d[2] - d[3]);
    t[2] = (d[2] << 2) - t[1] - (d[3] << 1);
    t[3] = (d[4] - d[2]) - (odd << 1);
    t[4] = odd;
}

inline void transform_out(const Lanes (&m)[5], Lanes (&y)[3]) {
    const Lanes sum = m[1] + m[2];
    y[0] = m[0] + sum + m[4];
    y[1] = m[1] - m[2] + (m[4] << 1);
    y[2] = sum + (m[4] << 2) + m[3];
}

// And for F(2,3), at the first four of these points and with the same weights.
inline void transform_in(const Lanes (&d)[4], Lanes (&t)[4]) {
    const Lanes difference = d[2] - d[1];
    t[0] = (d[0] - d[2]) << 1;
    t[1] = d[1] + d[2];
    t[2] = (difference << 1) + difference;
    t[3] = d[3] - d[1];
}

inline void transform_out(const Lanes (&m)[4], Lanes (&y)[2]) {
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] + m[3];
}

// Height x Width positions, of a tile with Side + 2 of them in either direction or one less.
template <int Side, int Height, int Width, class Store>
void tile_in_of(const u64* image, i64 image_row, i64 pixel_stride, i64 channels, u64* positions, const TilePlaces& places) {
    for (i64 c = 0; c < channels; c += kLane) {
        Lanes columns[Width][Height];  // columns[j][i]: transformed along rows i of column j
        for (int j = 0; j < Width; ++j) {
            Lanes line[Height];
            for (int i = 0; i < Height; ++i) line[i] = load(image + i * image_row + j * pixel_stride + c);
            transform_in(line, columns[j]);
        }
        for (int i = 0; i < Height; ++i) {
            Lanes line[Width], out[Width];
            for (int j = 0; j < Width; ++j) line[j] = columns[j][i];
            transform_in(line, out);
            for (int j = 0; j < Width; ++j) Store::put(positions + places.of(Side + 2, i, j) + c, out[j]);
        }
    }
}

template <int Side, int Height, int Width>
void tile_out_of(const u64* positions, const TilePlaces& places, i64 channels, u64* image, i64 image_row, i64 pixel_stride,
                 i64 rows, i64 columns) {
    constexpr int shift = 2;  // what the weights of either direction were doubled
    for (i64 c = 0; c < channels; c += kLane) {
        Lanes half[Width][Height - 2];  // half[j][i]: output row i of column j
        for (int j = 0; j < Width; ++j) {
            Lanes line[Height];
            for (int i = 0; i < Height; ++i) line[i] = load(positions + places.of(Side + 2, i, j) + c);
            transform_out(line, half[j]);
        }
        for (int i = 0; i < Height - 2 && i < rows; ++i) {
            Lanes line[Width], out[Width - 2];
            for (int j = 0; j < Width; ++j) line[j] = half[j][i];
            transform_out(line, out);
            for (int j = 0; j < Width - 2; ++j)
                if (j < columns) store(image + i * image_row + j * pixel_stride + c, out[j] >> shift);
        }
    }
}

struct StoreWords {
    static void put(u64* to, Lanes x) { store(to, x); }
};

template <class Store>
void tile_in(const TileShape& tile, const u64* image, i64 image_row, i64 pixel_stride, i64 channels, u64* positions,
             const TilePlaces& places) {
    const auto run = tile.side == 4   ? tile_in_of<4, 6, 6, Store>
                     : tile.side == 2 ? tile_in_of<2, 4, 4, Store>
                     : tile.tall      ? (tile.wide ? tile_in_of<3, 5, 5, Store> : tile_in_of<3, 5, 4, Store>)
                                      : (tile.wide ? tile_in_of<3, 4, 5, Store> : tile_in_of<3, 4, 4, Store>);
    run(image, image_row, pixel_stride, channels, positions, places);
}

void tile_out(const TileShape& tile, const u64* positions, const TilePlaces& places, i64 channels, u64* image, i64 image_row,
              i64 pixel_stride, i64 rows, i64 columns) {
    const auto run = tile.side == 4   ? tile_out_of<4, 6, 6>
                     : tile.side == 2 ? tile_out_of<2, 4, 4>
                     : tile.tall      ? (tile.wide ? tile_out_of<3, 5, 5> : tile_out_of<3, 5, 4>)
                                      : (tile.wide ? tile_out_of<3, 4, 5> : tile_out_of<3, 4, 4>);
    run(positions, places, channels, image, image_row, pixel_stride, rows, columns);
}

struct FullProduct {
    static Lanes multiply_add(Lanes sum, Lanes x, Lanes w) { return sum + x * w; }
};

// Eight channels of `Pixels` neighbours, which share each loaded weight.
template <class Arithmetic, int Pixels>
inline void depthwise_pixels(const u64* weight, const u64* image, i64 image_row, const i64* taps, i64 tap_count,
                             i64 channels, u64* out, i64 out_row) {
    Lanes sums[Pixels] = {};
    for (i64 t = 0; t < tap_count; ++t) {
        const Lanes w = load(weight + t * channels);
        for (int k = 0; k < Pixels; ++k)
            sums[k] = Arithmetic::multiply_add(sums[k], load(image + k * image_row + taps[t]), w);
    }
    for (int k = 0; k < Pixels; ++k) store(out + k * out_row, sums[k]);
}

template <class Arithmetic>
void depthwise(const u64* weight, const u64* image, i64 image_row, const i64* taps, i64 tap_count, i64 channels,
               i64 count, u64* out, i64 out_row) {
    constexpr i64 kPixels = 4, kChannels = 64;  // channels whose weights stay in the L1 cache along the line
    for (i64 first = 0; first < channels; first += kChannels) {
        const i64 end = first + kChannels < channels ? first + kChannels : channels;
        i64 pixel = 0;
        for (; pixel + kPixels <= count; pixel += kPixels)
            for (i64 c = first; c < end; c += kLane)
                depthwise_pixels<Arithmetic, kPixels>(weight + c, image + pixel * image_row + c, image_row, taps,
                                                      tap_count, channels, out + pixel * out_row + c, out_row);
        for (; pixel < count; ++pixel)
            for (i64 c = first; c < end; c += kLane)
                depthwise_pixels<Arithmetic, 1>(weight + c, image + pixel * image_row + c, image_row, taps, tap_count,
                                                channels, out + pixel * out_row + c, out_row);
    }
}

// Blocks of 8 x 8 keep both sides within few cache lines.
[[maybe_unused]] void to_pixels_blocked(const u64* planes, i64 plane_stride, i64 channels, i64 count, u64* pixels, i64 pixel_stride) {
    for (i64 c = 0; c < channels; c += kLane)
        for (i64 p = 0; p < count; p += kLane) {
            const i64 pixels_here = count - p < kLane ? count - p : kLane;
            for (i64 k = 0; k < kLane; ++k) {
                const u64* from = planes + (c + k) * plane_stride + p;
                u64* to = pixels + p * pixel_stride + c + k;
                if (c + k < channels)
                    for (i64 i = 0; i < pixels_here; ++i) to[i * pixel_stride] = from[i];
                else
                    for (i64 i = 0; i < pixels_here; ++i) to[i * pixel_stride] = 0;
            }
        }
}

[[maybe_unused]] void to_planes_blocked(const u64* pixels, i64 pixel_stride, i64 channels, i64 count, u64* planes,
                                        i64 plane_stride, bool add, const u64* bias) {
    for (i64 c = 0; c < channels; c += kLane)
        for (i64 p = 0; p < count; p += kLane) {
            const i64 pixels_here = count - p < kLane ? count - p : kLane;
            const i64 channels_here = channels - c < kLane ? channels - c : kLane;
            for (i64 k = 0; k < channels_here; ++k) {
                const u64* from = pixels + p * pixel_stride + c + k;
                u64* to = planes + (c + k) * plane_stride + p;
                if (add)
                    for (i64 i = 0; i < pixels_here; ++i) to[i] += from[i * pixel_stride];
                else
                    for (i64 i = 0; i < pixels_here; ++i) to[i] = from[i * pixel_stride];
                if (bias)
                    for (i64 i = 0; i < pixels_here; ++i) to[i] += bias[c + k];
            }
        }
}

// Fills a table by number of vectors and rows with instances of Kernel<vectors, rows>::run.
template <template <int, int> class Kernel, int Vectors, int Rows>
void fill_rows(Micro (&table)[kMaxVectors + 1][kMaxRows + 1]) {
    table[Vectors][Rows] = &Kernel<Vectors, Rows>::run;
    if constexpr (Rows > 1) fill_rows<Kernel, Vectors, Rows - 1>(table);
}

}  // namespace
}  // namespace autorep
