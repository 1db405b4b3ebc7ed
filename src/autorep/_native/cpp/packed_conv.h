// A convolution whose weight was packed once: geometry, layout of the packed weight, and the ways to run it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "conv.h"

namespace autorep {

struct Span {
    i64 begin, end;
    i64 length() const { return end > begin ? end - begin : 0; }
};

// Of the positions 0..count of an output, those at which a tap `offset` from the first lies inside the input's length.
inline Span inside(i64 count, i64 stride, i64 offset, i64 length) {
    const i64 begin = offset < 0 ? ceil_div(-offset, stride) : 0, end = length > offset ? ceil_div(length - offset, stride) : 0;
    return {begin, end < count ? end : count};
}

struct ConvShape {
    i64 outputs, channels, height, width;  // channels of the whole input, all groups
    i64 kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;

    i64 group_channels() const { return channels / groups; }
    i64 group_outputs() const { return outputs / groups; }
    i64 taps() const { return kernel_h * kernel_w; }
    i64 out_h() const { return (height + 2 * pad_h - dilation_h * (kernel_h - 1) - 1) / stride_h + 1; }
    i64 out_w() const { return (width + 2 * pad_w - dilation_w * (kernel_w - 1) - 1) / stride_w + 1; }
    i64 out_pixels() const { return out_h() * out_w(); }
    i64 padded_channels() const { return round_up(channels, kLane); }
    bool depthwise() const { return groups == channels && outputs == channels && channels > 1; }
    // Products of one channel in and out, without those by the border of zeros.
    i64 products_inside() const {
        i64 rows = 0, columns = 0;
        for (i64 i = 0; i < kernel_h; ++i) rows += inside(out_h(), stride_h, i * dilation_h - pad_h, height).length();
        for (i64 j = 0; j < kernel_w; ++j) columns += inside(out_w(), stride_w, j * dilation_w - pad_w, width).length();
        return rows * columns;
    }
    bool winograd_fits() const {
        return kernel_h == 3 && kernel_w == 3 && stride_h == 1 && stride_w == 1 && dilation_h == 1 &&
               dilation_w == 1 && groups == 1;
    }
};

// Winograd tiles along a line of `length` outputs: `large` ones of `side` outputs, then `small` ones of one less, which
// only the side 3 knows: so many that its tiles end where the line does.
struct TileLine {
    i64 side, large, small;

    TileLine(i64 side, i64 length) : side(side), large(ceil_div(length, side)), small(0) {
        if (side == 3) small = 3 * large - length < large ? 3 * large - length : large;
        large -= small;
    }
    i64 count() const { return large + small; }
    i64 begin(i64 tile) const { return tile * side - (tile > large ? tile - large : 0); }
    i64 length() const { return begin(count()); }
    i64 outputs(i64 tile) const { return tile < large ? side : side - 1; }
    i64 products() const { return large * (side + 2) + small * (side + 1); }
};

struct OutBlock {  // up to 32 output channels that one call of the innermost kernel computes
    i64 group, first, count;
    int vectors;
    i64 lane;    // where its lanes start in a row that holds all blocks
    i64 plane;   // where its weights start among those of one tap, or of one position of a Winograd tile, in words

    i64 width() const { return vectors * kLane; }
};

struct StepRange {  // part of the sum over taps and channels, small enough for its weights to stay in the L1 cache
    i64 first_tap, taps, first_channel, channels;
};

enum class Algorithm { direct, depthwise, winograd };
enum class Stored { words, shorts, limbs };  // how weights lie in memory: eight bytes, six, or cut into limbs

struct Target {  // where results go
    u64* out;
    bool add = false;           // to what is there
    const u64* bias = nullptr;  // a number more for every output channel
};

class PackedConv {
public:
    PackedConv(const u64* weight, const ConvShape& shape, int bits, const std::string& algorithm);
    void run(const u64* x, i64 batch, const Target& target) const;
    std::string algorithm() const;
    i64 packed_bytes() const { return packed_words_ * 8; }

private:
    Micro micro(const OutBlock& block, i64 rows) const;
    int max_rows(const OutBlock& block) const { return limbs() ? kernels_->limb_rows : kernels_->max_rows[block.vectors]; }
    bool limbs() const { return stored_ == Stored::limbs; }
    // Of the direct convolution (side 0) or a Winograd tile: how its weights are stored, their number, their bytes.
    Stored stored_as(int side) const;
    i64 weights(int side) const;
    i64 weight_bytes(int side) const;
    i64 step_words(const OutBlock& block, i64 channels) const;  // packed words of one tap of so many input channels
    void store_weight(u64* tap, const OutBlock& block, i64 channel, i64 lane, u64 value) const;
    void fetch_ahead(MicroTask& micro, const OutBlock& block, i64 call, i64 calls) const;
    double cost(int side) const;
    int extra_bits() const;  // beyond `bits` that the algorithm computes with
    void choose(const std::string& wanted);
    void make_blocks();
    void allocate(i64 words);
    void pack_direct(const u64* weight);
    void pack_depthwise(const u64* weight);
    void pack_winograd(const u64* weight);
    const u64* pad_images(const u64* x, i64 batch, i64 height, i64 width) const;
    void run_direct(const u64* x, i64 batch, const Target& target) const;
    void run_depthwise(const u64* x, i64 batch, const Target& target) const;
    void run_winograd(const u64* x, i64 batch, const Target& target) const;
    // Sums of `channels` channels from `first` on, `count` pixels, to where pixel `at` of image `image` lies.
    void put(const Target& target, const u64* sums, i64 row, i64 image, i64 first, i64 channels, i64 at, i64 count) const;

    ConvShape shape_;
    int bits_;
    const ConvKernels* kernels_;  // of the level at which the weight was packed
    Algorithm algorithm_ = Algorithm::direct;
    int side_ = 0;                // of Winograd's tiles
    Stored stored_ = Stored::words;
    std::vector<OutBlock> blocks_;
    i64 row_lanes_ = 0;    // lanes of all blocks together
    i64 plane_words_ = 0;  // weights of one tap or position, all blocks together
    i64 packed_words_ = 0;
    std::unique_ptr<u64, void (*)(u64*)> packed_;
};

// Memory that one thread keeps between calls, so that large buffers are not mapped and cleared every time.
enum class Scratch { images, transformed, products, sums, count };
u64* scratch(Scratch slot, i64 words);

}  // namespace autorep
