// The two ends of the extension; see ot.h. Nothing here branches on, or is addressed by, a choice, delta or a key.
#include "ot.h"

#include <algorithm>
#include <memory>

#include "bindings.h"
#include "bits.h"

namespace autorep {
namespace {

constexpr i64 kChunk = 128;             // words of a column at a time: 8192 transfers
constexpr i64 kStride = kChunk + 8;     // columns a power of two apart would evict each other
constexpr i64 kHashed = 512;            // rows hashed at a time

const AesKey& fixed_key() {
    static const u8 key[16] = {'a', 'u', 't', 'o', 'r', 'e', 'p', '/', 'o', 't', '-', 'h', 'a', 's', 'h', '1'};
    static const AesKey expanded = aes_expand(key);
    return expanded;
}

// rows (count, 2 words) to pads (count, depth, 2 words).
void hash_rows(const AesOps& aes, u64 first, const Block* rows, i64 count, i64 depth, u64* pads) {
    Block inner[kHashed], tweaked[kHashed], out[kHashed];
    for (i64 done = 0; done < count; done += kHashed) {
        const i64 n = std::min(count - done, kHashed);
        aes.mmo(fixed_key(), rows + done, inner, n);
        for (i64 i = 0; i < n; ++i) {
            inner[i].lo ^= rows[done + i].lo;
            inner[i].hi ^= rows[done + i].hi;
        }
        for (i64 level = 0; level < depth; ++level) {
            for (i64 i = 0; i < n; ++i)
                tweaked[i] = {inner[i].lo ^ (first + static_cast<u64>(done + i)), inner[i].hi ^ static_cast<u64>(level)};
            aes.mmo(fixed_key(), tweaked, out, n);  // pi(z) ^ z with z = pi(x) ^ tweak: the tweak is still to be removed
            for (i64 i = 0; i < n; ++i) {
                u64* pad = pads + 2 * ((done + i) * depth + level);
                pad[0] = out[i].lo ^ (first + static_cast<u64>(done + i));
                pad[1] = out[i].hi ^ static_cast<u64>(level);
            }
        }
    }
}

}  // namespace

struct OtStreams::Columns {
    alignas(64) u64 bit[kOtColumns][kStride];
    alignas(64) u64 total[kChunk];           // XOR of all streams of the block
    alignas(64) u64 stream[kOtKeys][kChunk];
    Block rows[64 * kChunk];

    void to_rows(i64 words) {
        const BitOps& ops = bit_ops();
        u64 half[2][64];
        for (i64 w = 0; w < words; ++w) {
            for (int h = 0; h < 2; ++h) ops.from_planes(&bit[64 * h][w], kStride, 64, 64, half[h]);
            for (i64 i = 0; i < 64; ++i) rows[64 * w + i] = {half[0][i], half[1][i]};
        }
    }
};

OtStreams::OtStreams(const u8* keys) {
    keys_.reserve(kOtBlocks * kOtKeys);
    for (i64 i = 0; i < kOtBlocks * kOtKeys; ++i) keys_.push_back(aes_expand(keys + 16 * i));
}

// Columns 4j .. 4j + 3 and the total of block j, from the streams of keys `key_from` to 15.
void OtStreams::fold(u64 block, i64 words, i64 key_from, Columns& columns, i64 j) const {
    const AesOps& aes = aes_ops();
    for (i64 x = key_from; x < kOtKeys; ++x)
        aes.ctr(keys_[static_cast<size_t>(kOtKeys * j + x)], block, columns.stream[x], words, ~u64(0));
    if (key_from) std::fill_n(columns.stream[0], words, 0);
    u64(*r)[kChunk] = columns.stream;
    for (i64 i = 0, half = 1; i < 4; ++i, half *= 2) {  // after step i: stream x holds the sum of x .. x + 2 half - 1
        u64* column = columns.bit[4 * j + i];
        std::fill_n(column, words, 0);
        for (i64 x = 0; x < kOtKeys; x += 2 * half)
            for (i64 w = 0; w < words; ++w) {
                column[w] ^= r[x + half][w];
                r[x][w] ^= r[x + half][w];
            }
    }
    std::copy_n(r[0], words, columns.total);
}

void OtStreams::receive(u64 first, i64 words, const u64* choices, u64* u, i64 depth, u64* pads) const {
    parallel_ranges(ceil_div(words, kChunk), 1, [&](i64 begin, i64 end) {
        auto columns = std::make_unique<Columns>();
        for (i64 done = begin * kChunk; done < std::min(end * kChunk, words); done += kChunk) {
            const i64 n = std::min(kChunk, words - done);
            const u64 row = first + static_cast<u64>(64 * done);
            for (i64 j = 0; j < kOtBlocks; ++j) {
                fold(row / 128, n, 0, *columns, j);
                for (i64 w = 0; w < n; ++w) u[j * words + done + w] = columns->total[w] ^ choices[done + w];
            }
            columns->to_rows(n);
            hash_rows(aes_ops(), row, columns->rows, 64 * n, depth, pads + 2 * depth * 64 * done);
        }
    });
}

void OtStreams::send(u64 first, i64 words, const u64* u, const u64 delta[2], i64 depth, u64* pads0, u64* pads1) const {
    parallel_ranges(ceil_div(words, kChunk), 1, [&](i64 begin, i64 end) {
        auto columns = std::make_unique<Columns>();
        for (i64 done = begin * kChunk; done < std::min(end * kChunk, words); done += kChunk) {
            const i64 n = std::min(kChunk, words - done);
            const u64 row = first + static_cast<u64>(64 * done);
            for (i64 j = 0; j < kOtBlocks; ++j) {
                fold(row / 128, n, 1, *columns, j);
                for (i64 i = 4 * j; i < 4 * j + 4; ++i) {
                    const u64 mask = u64(0) - ((delta[i / 64] >> (i % 64)) & 1);
                    for (i64 w = 0; w < n; ++w) columns->bit[i][w] ^= u[j * words + done + w] & mask;
                }
            }
            columns->to_rows(n);
            hash_rows(aes_ops(), row, columns->rows, 64 * n, depth, pads0 + 2 * depth * 64 * done);
            for (i64 i = 0; i < 64 * n; ++i) {
                columns->rows[i].lo ^= delta[0];
                columns->rows[i].hi ^= delta[1];
            }
            hash_rows(aes_ops(), row, columns->rows, 64 * n, depth, pads1 + 2 * depth * 64 * done);
        }
    });
}

void register_ot(nb::module_& m) {
    nb::class_<OtStreams>(m, "OtStreams")
        .def("__init__",
             [](OtStreams* self, Bytes keys) {
                 nb::gil_scoped_release release;
                 new (self) OtStreams(keys.data());
             })
        .def("receive", [](const OtStreams& self, u64 first, Words choices, WordsOut u, WordsOut pads) {
            self.receive(first, static_cast<i64>(choices.size()), choices.data(), u.data(),
                         static_cast<i64>(pads.shape(1)), pads.data());
        }, NoGil())
        .def("send", [](const OtStreams& self, u64 first, Words u, Words delta, WordsOut pads0, WordsOut pads1) {
            self.send(first, static_cast<i64>(u.shape(1)), u.data(), delta.data(), static_cast<i64>(pads0.shape(1)),
                      pads0.data(), pads1.data());
        }, NoGil());
}

}  // namespace autorep
