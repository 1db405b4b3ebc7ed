// Packed convolutions: choice of algorithm, packing of the weight, Python class.
#include "packed_conv.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>

#include <nanobind/stl/optional.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bindings.h"

namespace autorep {
namespace {

// Large pages where the system has them: a weight of megabytes is read end to end, and the processor's
// prefetchers stop at every page.
constexpr size_t kAlignment = size_t(1) << 21, kSmallAlignment = 64;

u64* aligned_words(i64 words) {
    const size_t bytes = static_cast<size_t>(words) * 8;
    const size_t alignment = bytes >= kAlignment ? kAlignment : kSmallAlignment;
    void* data = std::aligned_alloc(alignment, round_up(static_cast<i64>(bytes), static_cast<i64>(alignment)));
    if (!data) throw std::bad_alloc();
#if defined(__linux__)
    if (bytes >= kAlignment) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<u64*>(data);
}
void free_words(u64* p) { std::free(p); }

// The matrices 2 G, as far as the transforms of images (lanes.h) leave it to them: of F(4,3), and of F(3,3), whose first
// four rows are those of F(2,3). A third and a ninth are numbers of the ring.
constexpr u64 kThird = 0xAAAAAAAAAAAAAAABull, kNinth = kThird * kThird;
static_assert(kThird * 3 == 1, "inverse of 3 in the ring");
constexpr u64 kNegative = u64(0) - kThird;
constexpr u64 kFilter4[6][3] = {{1, 0, 0},
                                {1, 1, 1},
                                {kNinth, u64(0) - kNinth, kNinth},
                                {kNinth, 2 * kNinth, 4 * kNinth},
                                {4 * kNinth, 2 * kNinth, kNinth},
                                {0, 0, 1}};
constexpr u64 kFilter3[5][3] = {{1, 0, 0}, {1, 1, 1}, {kThird, kNegative, kThird}, {0, 0, 2}, {kThird, 2 * kThird, 4 * kThird}};

// Cost model, in units of eight 52-bit multiply-adds by AVX-512 on a core with two multipliers of that width: what an
// algorithm reads, multiplies and transforms for a batch of one.
constexpr double kWordFromMemory = 3.3;  // reading one packed weight word from memory, as the other party does too
constexpr double kTransformed = 20.0;    // moving eight channels of one position through a transform
constexpr i64 kCachedWords = 1 << 17;    // packed weights that stay in the L2 cache
constexpr i64 kLargeBytes = 1 << 21;     // what a lean weight shall save at least to be slower

double multiply_add_cost(int bits, bool limbs) {
    if (limbs) return 3.5;
    if (simd_level() == Simd::avx512) return (bits <= 52 ? 1.0 : 4.0) * (narrow_avx512() ? 2.0 : 1.0);
    return simd_level() == Simd::avx2 ? 8.0 : 13.0;
}

constexpr int kTileBits = 2;  // beyond those of the ring that a Winograd tile, of whatever side, is computed with

int extra_bits_of(int side) { return side ? kTileBits : 0; }

}  // namespace

u64* scratch(Scratch slot, i64 words) {
    struct Buffer {
        u64* data = nullptr;
        i64 words = 0;
        ~Buffer() { free_words(data); }
    };
    thread_local Buffer buffers[static_cast<int>(Scratch::count)];
    Buffer& buffer = buffers[static_cast<int>(slot)];
    if (buffer.words < words) {
        free_words(buffer.data);
        buffer.data = nullptr;
        buffer.words = 0;
        buffer.data = aligned_words(words);
        buffer.words = words;
    }
    return buffer.data;
}

const ConvKernels& conv_kernels() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return conv_kernels_avx512();
    if (simd_level() == Simd::avx2) return conv_kernels_avx2();
#endif
    return conv_kernels_portable();
}

PackedConv::PackedConv(const u64* weight, const ConvShape& shape, int bits, const std::string& algorithm)
    : shape_(shape), bits_(bits), kernels_(&conv_kernels()), packed_(nullptr, free_words) {
    choose(algorithm);
    make_blocks();
    if (algorithm_ == Algorithm::depthwise) pack_depthwise(weight);
    else if (algorithm_ == Algorithm::direct) pack_direct(weight);
    else pack_winograd(weight);
}

std::string PackedConv::algorithm() const {
    switch (algorithm_) {
        case Algorithm::direct: return "direct";
        case Algorithm::depthwise: return "depthwise";
        default: return "winograd" + std::to_string(side_);
    }
}

int PackedConv::extra_bits() const { return extra_bits_of(side_); }

Stored PackedConv::stored_as(int side) const {
    const int bits = bits_ + extra_bits_of(side);
    if (kernels_->split && bits <= kLimbBits && (shape_.groups == 1 || shape_.group_channels() % 2 == 0)) return Stored::limbs;
    return kernels_->exact48[1][1] && bits <= kShortBits && weights(side) > kCachedWords ? Stored::shorts : Stored::words;
}

i64 PackedConv::weights(int side) const {
    return (side ? (side + 2) * (side + 2) : shape_.taps()) * shape_.group_channels() * shape_.outputs;
}

i64 PackedConv::weight_bytes(int side) const {
    return weights(side) * (stored_as(side) == Stored::words ? 8 : kShortBytes);
}

// Of the direct convolution (side 0) or a Winograd tile.
double PackedConv::cost(int side) const {
    const i64 products = side ? TileLine(side, shape_.out_h()).products() * TileLine(side, shape_.out_w()).products()
                              : shape_.products_inside();
    const double count = static_cast<double>(weights(side));
    const bool words = stored_as(side) == Stored::words;
    const double multiply = multiply_add_cost(bits_ + extra_bits_of(side), stored_as(side) == Stored::limbs) *
                            static_cast<double>(shape_.outputs * shape_.group_channels() * products) / kLane;
    const i64 moved = (ceil_div(shape_.channels, kLane) + ceil_div(shape_.outputs, kLane)) * products;
    const double transform = side ? kTransformed * static_cast<double>(moved) : 0.0;
    const double memory = weights(side) > kCachedWords ? kWordFromMemory * (words ? 1.0 : 0.75) * count : 0.0;
    return std::max(multiply, memory) + transform;
}

// `wanted` is auto, lean, direct, winograd (the best of its tiles), or with a tile's side behind it.
void PackedConv::choose(const std::string& wanted) {
    const bool tiled = wanted.rfind("winograd", 0) == 0;
    const int only = tiled && wanted.size() > 8 ? wanted[8] - '0' : 0;
    if (tiled && !shape_.winograd_fits())
        throw std::invalid_argument("winograd needs a 3x3 kernel with stride 1, dilation 1 and groups 1");
    if (tiled && bits_ + kTileBits > 64)
        throw std::invalid_argument(wanted + " needs bits <= " + std::to_string(64 - kTileBits));
    if (!tiled && shape_.depthwise()) {
        algorithm_ = Algorithm::depthwise;
        return;
    }
    if (wanted != "direct" && shape_.winograd_fits() && bits_ + kTileBits <= 64) {
        double best = tiled ? -1.0 : cost(0);
        for (const int side : {2, 3, 4}) {
            if ((only && side != only) || (best >= 0 && cost(side) >= best)) continue;
            best = cost(side);
            side_ = side;
        }
        const int fastest = side_;
        if (wanted == "lean")
            for (const int side : {3, 2, 0})  // ever smaller weights
                if (weight_bytes(fastest) - weight_bytes(side) > kLargeBytes && cost(side) <= 1.5 * best) side_ = side;
    }
    if (side_) algorithm_ = Algorithm::winograd;
    stored_ = stored_as(side_);
}

Micro PackedConv::micro(const OutBlock& block, i64 rows) const {
    if (limbs()) return kernels_->limbs[rows];
    if (stored_ == Stored::shorts) return kernels_->exact48[block.vectors][rows];
    return (bits_ + extra_bits() <= 52 ? kernels_->exact52 : kernels_->exact64)[block.vectors][rows];
}

i64 PackedConv::step_words(const OutBlock& block, i64 channels) const {
    if (limbs()) return ceil_div(channels, 2) * kPairWords;
    return channels * block.vectors * (stored_ == Stored::shorts ? kShortBytes : kLane);
}

void PackedConv::store_weight(u64* tap, const OutBlock& block, i64 channel, i64 lane, u64 value) const {
    if (stored_ == Stored::words) {
        tap[channel * block.width() + lane] = value;
        return;
    }
    if (stored_ == Stored::shorts) {
        std::memcpy(reinterpret_cast<u8*>(tap) + (channel * block.width() + lane) * kShortBytes, &value, kShortBytes);
        return;
    }
    auto* pair = reinterpret_cast<std::int16_t*>(tap + channel / 2 * kPairWords) + 2 * lane + channel % 2;
    const Limbs limbs = limbs_of_weight(value);
    pair[0] = limbs.low;
    pair[2 * kLane] = limbs.middle;
    pair[4 * kLane] = limbs.high;
}

// As few blocks as possible, of sizes as even as possible: a narrow last block would leave the multiplier waiting.
void PackedConv::make_blocks() {
    const i64 per_group = shape_.group_outputs(), vectors = ceil_div(per_group, kLane);
    const i64 count = ceil_div(vectors, limbs() ? 1 : kMaxVectors);
    for (i64 group = 0; group < shape_.groups; ++group)
        for (i64 b = 0; b < count; ++b) {
            const i64 begin = vectors * b / count * kLane, end = vectors * (b + 1) / count * kLane;
            OutBlock block;
            block.group = group;
            block.first = group * per_group + begin;
            block.count = std::min(end, per_group) - begin;
            block.vectors = static_cast<int>((end - begin) / kLane);
            block.lane = row_lanes_;
            block.plane = plane_words_;
            row_lanes_ += block.width();
            plane_words_ += step_words(block, shape_.group_channels());
            blocks_.push_back(block);
        }
}

void PackedConv::allocate(i64 words) {
    words += stored_ == Stored::shorts ? 2 : 0;  // what kernels read beyond
    packed_words_ = words;
    packed_.reset(aligned_words(words));
    std::fill(packed_.get(), packed_.get() + words, u64(0));
}

void PackedConv::pack_direct(const u64* weight) {
    const i64 channels = shape_.group_channels(), taps = shape_.taps();
    allocate(taps * plane_words_);
    parallel_ranges(static_cast<i64>(blocks_.size()), 1, [&](i64 begin, i64 end) {
        for (i64 b = begin; b < end; ++b) {
            const OutBlock& block = blocks_[static_cast<size_t>(b)];
            const i64 tap_words = step_words(block, channels);
            for (i64 o = 0; o < block.count; ++o)
                for (i64 c = 0; c < channels; ++c)
                    for (i64 t = 0; t < taps; ++t)
                        store_weight(packed_.get() + block.plane * taps + t * tap_words, block, c, o,
                                     weight[((block.first + o) * channels + c) * taps + t]);
        }
    });
}

void PackedConv::pack_depthwise(const u64* weight) {
    const i64 channels = shape_.padded_channels(), taps = shape_.taps();
    allocate(taps * channels);
    for (i64 c = 0; c < shape_.channels; ++c)
        for (i64 t = 0; t < taps; ++t) packed_.get()[t * channels + c] = weight[c * taps + t];
}

// [position][block][channel][lane] of (k G) w (k G)^T.
void PackedConv::pack_winograd(const u64* weight) {
    const int n = side_ + 2;
    const i64 channels = shape_.channels;
    const auto filter = [&](int i, int k) { return (side_ == 4 ? kFilter4 : kFilter3)[i][k]; };
    allocate(n * n * plane_words_);
    parallel_ranges(static_cast<i64>(blocks_.size()), 1, [&](i64 begin, i64 end) {
        for (i64 b = begin; b < end; ++b) {
            const OutBlock& block = blocks_[static_cast<size_t>(b)];
            for (i64 o = 0; o < block.count; ++o)
                for (i64 c = 0; c < channels; ++c) {
                    const u64* w = weight + ((block.first + o) * channels + c) * 9;
                    u64 half[6][3];
                    for (int i = 0; i < n; ++i)
                        for (int k = 0; k < 3; ++k)
                            half[i][k] = filter(i, 0) * w[k] + filter(i, 1) * w[3 + k] + filter(i, 2) * w[6 + k];
                    for (int i = 0; i < n; ++i)
                        for (int j = 0; j < n; ++j)
                            store_weight(packed_.get() + (i * n + j) * plane_words_ + block.plane, block, c, o,
                                         filter(j, 0) * half[i][0] + filter(j, 1) * half[i][1] + filter(j, 2) * half[i][2]);
                }
        }
    });
}

void register_conv(nb::module_& m) {
    nb::class_<PackedConv>(m, "PackedConv")
        .def("__init__",
             [](PackedConv* self, Words weight, i64 channels, i64 height, i64 width, std::vector<i64> sides, i64 groups,
                int bits, const std::string& algorithm) {
                 const ConvShape shape{static_cast<i64>(weight.shape(0)), channels, height, width,
                                       static_cast<i64>(weight.shape(2)), static_cast<i64>(weight.shape(3)),
                                       sides.at(0), sides.at(1), sides.at(2), sides.at(3), sides.at(4), sides.at(5),
                                       groups};
                 nb::gil_scoped_release release;
                 new (self) PackedConv(weight.data(), shape, bits, algorithm);
             })
        .def("run", [](const PackedConv& conv, Words x, WordsOut out, bool add, std::optional<Words> bias) {
            conv.run(x.data(), static_cast<i64>(x.shape(0)), {out.data(), add, bias ? bias->data() : nullptr});
        }, nb::arg("x"), nb::arg("out"), nb::arg("add"), nb::arg("bias").none(), NoGil())
        .def_prop_ro("algorithm", &PackedConv::algorithm)
        .def_prop_ro("packed_bytes", &PackedConv::packed_bytes);
}

}  // namespace autorep
