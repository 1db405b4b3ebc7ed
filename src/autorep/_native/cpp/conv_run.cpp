// Running a packed convolution: direct, depthwise and Winograd.
#include <algorithm>

#include "packed_conv.h"

namespace autorep {
namespace {

constexpr i64 kSteps = 96;          // weight rows of one pass: 96 x 32 words = 24 KB, inside the L1 cache
constexpr i64 kLimbSteps = 256;     // the same in limbs: 128 pairs of 96 bytes = 12 KB
constexpr i64 kPixels = 256;        // pixels whose sums are kept together: 64 KB beside the weights in the L2
constexpr i64 kPadded = 1 << 14;    // words that are worth a thread where they are only moved
constexpr i64 kTileWords = 1 << 17; // transformed tiles kept together: 1 MB

struct Group {  // neighbouring pixels that one call of the innermost kernel computes
    i64 image;  // offset of the first one's top left tap
    i64 pixel;
    i64 rows;
};

// Cuts a line of `length` pixels into groups of at most `most`, as even as possible.
template <class Emit>
void cut_line(i64 length, i64 most, Emit&& emit) {
    const i64 parts = ceil_div(length, most);
    for (i64 part = 0; part < parts; ++part) emit(length * part / parts, length * (part + 1) / parts);
}

// Offsets of the kernel's taps from the first one, in words.
std::vector<i64> tap_offsets(const ConvShape& s, i64 row_words, i64 pixel_words) {
    std::vector<i64> taps;
    for (i64 i = 0; i < s.kernel_h; ++i)
        for (i64 j = 0; j < s.kernel_w; ++j) taps.push_back(i * s.dilation_h * row_words + j * s.dilation_w * pixel_words);
    return taps;
}

// `most` steps (taps x channels) at a time; channels are cut between pairs.
std::vector<StepRange> step_ranges(i64 taps, i64 channels, i64 most) {
    std::vector<StepRange> ranges;
    if (channels >= most) {
        for (i64 tap = 0; tap < taps; ++tap)
            cut_line(ceil_div(channels, 2), most / 2, [&](i64 a, i64 b) {
                ranges.push_back({tap, 1, 2 * a, std::min(2 * b, channels) - 2 * a});
            });
    } else {
        cut_line(taps, std::max<i64>(1, most / channels), [&](i64 a, i64 b) { ranges.push_back({a, b - a, 0, channels}); });
    }
    return ranges;
}

// The parts of groups that meet the image at one tap; elsewhere that tap meets the border of zeros.
std::vector<Group> meeting(const ConvShape& s, i64 tap, i64 pixel_step, const Group* from, const Group* to) {
    const i64 down = tap / s.kernel_w * s.dilation_h - s.pad_h, right = tap % s.kernel_w * s.dilation_w - s.pad_w;
    const Span rows = inside(s.out_h(), s.stride_h, down, s.height), columns = inside(s.out_w(), s.stride_w, right, s.width);
    std::vector<Group> found;
    for (const Group* group = from; group != to; ++group) {
        const i64 row = group->pixel % s.out_pixels() / s.out_w(), column = group->pixel % s.out_w();
        if (row < rows.begin || row >= rows.end) continue;
        const bool line = s.out_pixels() > 1;  // else the group's pixels are those of several images
        const i64 begin = line ? std::max(column, columns.begin) : column;
        const i64 end = line ? std::min(column + group->rows, columns.end) : columns.begin < columns.end ? group->rows : 0;
        if (begin < end)
            found.push_back({group->image + (begin - column) * pixel_step, group->pixel + begin - column, end - begin});
    }
    return found;
}

}  // namespace

// What call number `call` of `calls` on the same weights shall prefetch: the weights that follow, which stream in while
// it multiplies, in parts as equal as cache lines allow: memory is slower than one call alone. Calls that none is left
// for touch what is in the cache anyway.
void PackedConv::fetch_ahead(MicroTask& micro, const OutBlock& block, i64 call, i64 calls) const {
    const i64 words = micro.tap_count * step_words(block, micro.channels);
    micro.fetched = round_up(ceil_div(step_words(block, 1), calls), kLane);
    const i64 fetched = limbs() ? words : micro.tap_count * micro.channels * micro.fetched;
    micro.prefetch = micro.weight + (call * fetched < words ? words + call * fetched : 0);
}

void PackedConv::run(const u64* x, i64 batch, const Target& target) const {
    if (batch == 0) return;
    if (algorithm_ == Algorithm::depthwise) run_depthwise(x, batch, target);
    else if (algorithm_ == Algorithm::direct) run_direct(x, batch, target);
    else run_winograd(x, batch, target);
}

void PackedConv::put(const Target& target, const u64* sums, i64 row, i64 image, i64 first, i64 channels, i64 at,
                     i64 count) const {
    const i64 pixels = shape_.out_pixels();
    kernels_->to_planes(sums, row, channels, count, target.out + (image * shape_.outputs + first) * pixels + at, pixels,
                        target.add, target.bias ? target.bias + first : nullptr);
}

// The batch as [image][row][column][channel] with a border of zeros, `height` x `width` in all; in limbs where the direct
// convolution wants them (Winograd cuts what it transformed).
const u64* PackedConv::pad_images(const u64* x, i64 batch, i64 height, i64 width) const {
    const ConvShape& s = shape_;
    const i64 channels = s.padded_channels(), row_words = width * channels;
    const i64 right = width - s.pad_w - s.width;  // negative where strides never reach the last columns
    u64* images = scratch(Scratch::images, batch * height * row_words);
    parallel_ranges(batch * height, std::max<i64>(1, kPadded / row_words), [&](i64 begin, i64 end) {
        for (i64 line = begin; line < end; ++line) {
            const i64 image = line / height, y = line % height - s.pad_h;
            u64* to = images + line * row_words;
            if (s.kernel_h == 1 && line % height % s.stride_h != 0) continue;  // a row that no output reads
            if (y < 0 || y >= s.height) {
                std::fill(to, to + row_words, u64(0));
                continue;
            }
            std::fill(to, to + s.pad_w * channels, u64(0));
            kernels_->to_pixels(x + (image * s.channels * s.height + y) * s.width, s.height * s.width, s.channels,
                              std::min(s.width, width - s.pad_w), to + s.pad_w * channels, channels);
            if (right > 0) std::fill(to + row_words - right * channels, to + row_words, u64(0));
            if (limbs() && algorithm_ == Algorithm::direct) kernels_->split(to, row_words);
        }
    });
    return images;
}

void PackedConv::run_direct(const u64* x, i64 batch, const Target& target) const {
    const ConvShape& s = shape_;
    const i64 channels = s.padded_channels(), height = s.height + 2 * s.pad_h, width = s.width + 2 * s.pad_w;
    const i64 image_words = height * width * channels, pixels = batch * s.out_pixels();
    const u64* images = pad_images(x, batch, height, width);

    const std::vector<i64> taps = tap_offsets(s, width * channels, channels);
    const std::vector<StepRange> steps = step_ranges(s.taps(), s.group_channels(), limbs() ? kLimbSteps : kSteps);

    // Lines of pixels at equal distances: a row of the output, or the whole batch where nothing lies between.
    // Where a step is one tap, pixels at which it meets the border of zeros are left out: 31 % of the products at 4 x 4.
    const bool cut = (s.pad_h > 0 || s.pad_w > 0) &&
                     std::all_of(steps.begin(), steps.end(), [](const StepRange& step) { return step.taps == 1; });
    const bool pointwise = s.taps() == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_h == 0 && s.pad_w == 0;
    const bool single = s.out_pixels() == 1;
    const i64 line = pointwise || single ? pixels : s.out_w();
    const i64 pixel_step = pointwise ? channels : single ? image_words : s.stride_w * channels;
    std::vector<Group> groups[kMaxVectors + 1];
    for (const OutBlock& block : blocks_) {
        auto& list = groups[block.vectors];
        if (!list.empty()) continue;
        for (i64 first = 0; first < pixels; first += line) {
            const i64 image = first / s.out_pixels(), row = first % s.out_pixels() / s.out_w();
            const i64 at = image * image_words + row * s.stride_h * width * channels;
            cut_line(line, max_rows(block), [&](i64 a, i64 b) {
                list.push_back({at + a * pixel_step, first + a, b - a});
            });
        }
    }

    const i64 chunks = ceil_div(pixels, kPixels);
    parallel_ranges(static_cast<i64>(blocks_.size()) * chunks, 1, [&](i64 begin, i64 end) {
        for (i64 task = begin; task < end; ++task) {
            const OutBlock& block = blocks_[static_cast<size_t>(task / chunks)];
            const auto& list = groups[block.vectors];
            const i64 chunk = task % chunks, listed = static_cast<i64>(list.size());
            u64* sums = scratch(Scratch::sums, (listed / chunks + 1) * kMaxRows * kMaxVectors * kLane);
            const Group* from = list.data() + listed * chunk / chunks;
            const Group* to = list.data() + listed * (chunk + 1) / chunks;
            const i64 first_pixel = from->pixel, end_pixel = to[-1].pixel + to[-1].rows;
            if (cut) std::fill(sums, sums + (end_pixel - first_pixel) * block.width(), u64(0));
            std::vector<Group> seen;
            for (const StepRange& step : steps) {
                MicroTask micro{};
                micro.weight = packed_.get() + block.plane * s.taps() +
                               step.first_tap * step_words(block, s.group_channels()) +
                               step_words(block, step.first_channel);
                micro.image_row = pixel_step;
                micro.taps = taps.data() + step.first_tap;
                micro.tap_count = step.taps;
                micro.channels = step.channels;
                micro.sums_row = block.width();
                micro.accumulate = cut || &step != steps.data();
                if (!cut) seen.assign(from, to);
                else if (step.first_channel == 0) seen = meeting(s, step.first_tap, pixel_step, from, to);
                for (const Group& group : seen) {
                    micro.image = images + group.image + block.group * s.group_channels() + step.first_channel;
                    micro.sums = sums + (group.pixel - first_pixel) * block.width();
                    fetch_ahead(micro, block, &group - seen.data(), static_cast<i64>(seen.size()));
                    this->micro(block, group.rows)(micro);
                }
            }
            for (i64 pixel = first_pixel; pixel < end_pixel;) {
                const i64 image = pixel / s.out_pixels(), inside = pixel % s.out_pixels();
                const i64 count = std::min(end_pixel - pixel, s.out_pixels() - inside);
                put(target, sums + (pixel - first_pixel) * block.width(), block.width(), image, block.first, block.count, inside,
                    count);
                pixel += count;
            }
        }
    });
}

void PackedConv::run_depthwise(const u64* x, i64 batch, const Target& target) const {
    const ConvShape& s = shape_;
    const i64 channels = s.padded_channels(), height = s.height + 2 * s.pad_h, width = s.width + 2 * s.pad_w;
    const u64* images = pad_images(x, batch, height, width);
    const Depthwise kernel = bits_ <= 52 ? kernels_->depthwise52 : kernels_->depthwise64;
    const std::vector<i64> taps = tap_offsets(s, width * channels, channels);
    parallel_ranges(batch * s.out_h(), 1, [&](i64 begin, i64 end) {
        u64* sums = scratch(Scratch::sums, s.out_w() * channels);
        for (i64 line = begin; line < end; ++line) {
            const i64 image = line / s.out_h(), row = line % s.out_h();
            kernel(packed_.get(), images + (image * height + row * s.stride_h) * width * channels, s.stride_w * channels,
                   taps.data(), s.taps(), channels, s.out_w(), sums, channels);
            put(target, sums, channels, image, 0, s.channels, row * s.out_w(), s.out_w());
        }
    });
}

void PackedConv::run_winograd(const u64* x, i64 batch, const Target& target) const {
    const ConvShape& s = shape_;
    const TileLine down(side_, s.out_h()), across(side_, s.out_w());
    const i64 n = side_ + 2, positions = n * n, tiles_h = down.count(), tiles_w = across.count();
    const i64 channels = s.padded_channels(), height = down.length() + 2, width = across.length() + 2;
    const u64* images = pad_images(x, batch, height, width);
    const std::vector<StepRange> steps = step_ranges(1, s.channels, limbs() ? kLimbSteps : kSteps);
    const TileIn tile_in = limbs() ? kernels_->tile_in_limbs : kernels_->tile_in;
    const i64 no_tap = 0;

    // Whole rows of tiles at a time. Rows of the batch's images follow each other; weights are read once per pass.
    const i64 tile_rows = batch * tiles_h, row_words = positions * tiles_w * (channels + row_lanes_);
    const i64 budget = std::max(kTileWords, std::min<i64>(packed_words_ / 2, 6 * kTileWords));
    const i64 passes = ceil_div(tile_rows, std::max<i64>(1, budget / row_words));
    const i64 most_tiles = ceil_div(tile_rows, passes) * tiles_w;
    // Eight words more than needed: positions a power of two apart would share few cache sets.
    const i64 in_stride = most_tiles * channels + kLane, out_stride = most_tiles * row_lanes_ + kLane;
    u64* transformed = scratch(Scratch::transformed, positions * in_stride);
    u64* products = scratch(Scratch::products, positions * out_stride);
    const auto large_before = [&](i64 row) { return row / tiles_h * down.large + std::min(row % tiles_h, down.large); };

    for (i64 pass = 0; pass < passes; ++pass) {
        const i64 first = tile_rows * pass / passes, rows = tile_rows * (pass + 1) / passes - first;
        const i64 large_rows = large_before(first + rows) - large_before(first);
        // Positions hold their tiles row by row, the last ones those of the large tiles only.
        const auto places = [&](i64 row, i64 column, i64 stride, i64 words) {
            TilePlaces found{stride, {}};
            for (const bool last_row : {false, true})
                for (const bool last_column : {false, true}) {
                    const i64 above = last_row ? large_before(row) - large_before(first) : row - first;
                    found.at[last_row][last_column] = (above * (last_column ? across.large : tiles_w) + column) * words;
                }
            return found;
        };
        const auto shape = [&](i64 row, i64 column) {
            return TileShape{side_, row % tiles_h < down.large, column < across.large};
        };
        parallel_ranges(rows * tiles_w, 2, [&](i64 begin, i64 end) {
            for (i64 tile = begin; tile < end; ++tile) {
                const i64 row = first + tile / tiles_w, column = tile % tiles_w;
                const u64* from = images + ((row / tiles_h * height + down.begin(row % tiles_h)) * width + across.begin(column)) *
                                               channels;
                tile_in(shape(row, column), from, width * channels, channels, channels, transformed,
                        places(row, column, in_stride, channels));
            }
        });
        parallel_ranges(positions * static_cast<i64>(blocks_.size()), 1, [&](i64 begin, i64 end) {
            for (i64 task = begin; task < end; ++task) {
                const i64 position = task / static_cast<i64>(blocks_.size());
                const OutBlock& block = blocks_[static_cast<size_t>(task % static_cast<i64>(blocks_.size()))];
                const i64 tiles = (position / n == n - 1 ? large_rows : rows) * (position % n == n - 1 ? across.large : tiles_w);
                for (const StepRange& step : steps) {
                    MicroTask micro{};
                    micro.weight = packed_.get() + position * plane_words_ + block.plane +
                                   step_words(block, step.first_channel);
                    micro.image_row = channels;
                    micro.taps = &no_tap;
                    micro.tap_count = 1;
                    micro.channels = step.channels;
                    micro.sums_row = row_lanes_;
                    micro.accumulate = step.first_channel != 0;
                    i64 call = 0;
                    const i64 calls = ceil_div(tiles, max_rows(block));
                    cut_line(tiles, max_rows(block), [&](i64 a, i64 b) {
                        micro.image = transformed + position * in_stride + a * channels + step.first_channel;
                        micro.sums = products + position * out_stride + a * row_lanes_ + block.lane;
                        fetch_ahead(micro, block, call++, calls);
                        this->micro(block, b - a)(micro);
                    });
                }
            }
        });
        // Eight channels of a row of tiles at a time: they stay in the L1 cache between the two steps.
        const i64 lanes = ceil_div(s.outputs, kLane);
        parallel_ranges(rows * lanes, 2, [&](i64 begin, i64 end) {
            u64* sums = scratch(Scratch::sums, side_ * width * kLane);
            for (i64 task = begin; task < end; ++task) {
                const i64 row = first + task / lanes, lane = task % lanes * kLane;
                const i64 image = row / tiles_h, y = down.begin(row % tiles_h);
                const i64 height_here = std::min(down.outputs(row % tiles_h), s.out_h() - y);
                for (i64 t = 0; t < tiles_w; ++t)
                    kernels_->tile_out(shape(row, t), products + lane, places(row, t, out_stride, row_lanes_), kLane,
                                       sums + across.begin(t) * kLane, s.out_w() * kLane, kLane, height_here,
                                       std::min(across.outputs(t), s.out_w() - across.begin(t)));
                put(target, sums, kLane, image, lane, std::min<i64>(kLane, s.outputs - lane), y * s.out_w(),
                    height_here * s.out_w());
            }
        });
    }
}

}  // namespace autorep
