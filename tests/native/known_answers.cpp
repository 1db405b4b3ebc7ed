// The kernels' known answers without Python, for processors that are only emulated here: prints "case<TAB>digest" for
// each case of known_answers.py, whose answers it must repeat. The one argument is the level.
#include <cinttypes>
#include <cstdio>
#include <functional>

#include "bits.h"
#include "dcf.cpp"
#include "packed_conv.h"
#include "quadratic.h"
#include "runtime.cpp"
#include "sign.cpp"

namespace autorep {
namespace {

using Vector = std::vector<u64>;

Vector words(u8 seed, i64 count, int bits = 64) {
    u8 key[16];
    std::fill_n(key, 16, seed);
    Vector out(static_cast<size_t>(count));
    aes_ops().ctr(aes_expand(key), 0, out.data(), count, low_mask(bits));
    return out;
}

void answer(const std::string& name, const void* data, size_t bytes) {
    u64 digest = 0;
    for (size_t i = 0; i < bytes; ++i) digest = digest * 0x9E3779B97F4A7C15ull + static_cast<const u8*>(data)[i] + 1;
    std::printf("%s\t%016" PRIx64 "\n", name.c_str(), digest);
}
void answer(const std::string& name, const Vector& data) { answer(name, data.data(), 8 * data.size()); }

void streams() {
    for (int bits : {44, 64}) answer("generator " + std::to_string(bits), words(1, 1001, bits));
    const Vector x = words(2, 1001);
    for (int bits : {1, 13, 44, 64}) {
        std::vector<u8> packed(static_cast<size_t>(ceil_div(1001 * bits, 8)));
        bit_ops().pack(x.data(), 1001, bits, packed.data());
        answer("pack " + std::to_string(bits), packed.data(), packed.size());
        Vector back(1001);
        bit_ops().unpack(packed.data(), 1001, bits, nullptr, back.data());
        answer("unpack " + std::to_string(bits), back);
    }
    Vector planes(24 * 10);
    for (i64 g = 0; g < 10; ++g) bit_ops().to_planes(words(3, 640).data() + 64 * g, 64, 24, planes.data() + g, 10);
    answer("planes", planes);
}

void convolution(const std::string& name, const ConvShape& shape, int bits, const std::string& algorithm) {
    const Vector weight = words(4, shape.outputs * shape.group_channels() * shape.taps());
    const Vector x = words(5, 2 * shape.channels * shape.height * shape.width);
    const PackedConv conv(weight.data(), shape, bits, algorithm);
    for (bool add : {false, true}) {
        Vector out = words(15, 2 * shape.outputs * shape.out_pixels());
        conv.run(x.data(), 2, {out.data(), add});
        for (u64& value : out) value &= low_mask(bits);
        answer("convolution " + name + (add ? " onto" : ""), out);
    }
}

void convolutions() {
    const ConvShape plain = {24, 16, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 1};
    convolution("direct 44", plain, 44, "direct");
    convolution("direct 64", plain, 64, "direct");
    for (const std::string tile : {"winograd2", "winograd3", "winograd4"}) convolution(tile + " 44", plain, 44, tile);
    convolution("stride 44", {24, 16, 9, 7, 3, 3, 2, 2, 1, 1, 1, 1, 1}, 44, "auto");
    convolution("depthwise 44", {16, 16, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 16}, 44, "auto");
}

void comparisons() {
    constexpr i64 count = 40;
    constexpr int n = 22;
    Vector alpha = words(6, count), x = words(11, count), beta = words(7, 3 * count);
    for (u64& value : alpha) value >>= 64 - n;
    for (u64& value : x) value >>= 64 - n;
    for (i64 i = 0; i < 3 * count; ++i) beta[static_cast<size_t>(i)] &= low_mask(i % 3 == 2 ? 16 : 44);
    const Vector roots[2] = {words(8, 2 * count), words(9, 2 * count)}, keys = words(10, 4);
    const u8* aes = reinterpret_cast<const u8*>(keys.data());
    const DcfCipher cipher = {aes_expand(aes), aes_expand(aes + 16)};
    const DcfShape shape = dcf_shape(n, 44, 16);
    std::vector<u8> made(static_cast<size_t>(count * shape.key_bytes));
    dcf_gen_of_level()(shape, cipher, count, alpha.data(), beta.data(), roots[0].data(), roots[1].data(), made.data());
    answer("comparison keys", made.data(), made.size());
    for (int party : {0, 1}) {
        Vector out(3 * count);
        dcf_eval_of_level()(shape, cipher, count, party, x.data(), roots[party].data(), made.data(), out.data());
        answer("comparison " + std::to_string(party), out);
    }
    const SignCipher short_cipher = {aes_expand(aes), aes_expand(aes + 16)};
    const SignShape form = sign_shape(n);
    std::vector<u8> shorts(static_cast<size_t>(count * form.key_bytes));
    sign_gen_of_level()(form, short_cipher, count, alpha.data(), roots[0].data(), roots[1].data(), shorts.data());
    answer("short keys", shorts.data(), shorts.size());
    for (int party : {0, 1}) {
        Vector out(1);
        sign_eval_of_level()(form, short_cipher, count, party, x.data(), roots[party].data(), shorts.data(), out.data());
        answer("short comparison " + std::to_string(party), out);
    }
}

void quadratics() {
    constexpr i64 count = 200;
    const Vector opened = words(12, count, 44), parts = words(13, 5 * count), abc = words(14, 3);
    std::vector<i64> positions(count);
    for (i64 i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = i;
    Vector out(count);
    const u64* part = parts.data();
    quadratic_ops_portable().share({opened.data(), positions.data(), true, count, 44, 12, abc[0], abc[1], abc[2], part,
                                    part + count, part + 2 * count, part + 3 * count, part + 4 * count, out.data()});
    answer("quadratic", out);
}

}  // namespace
}  // namespace autorep

int main(int, char** arguments) {
    autorep::set_simd(arguments[1]);
    autorep::streams();
    autorep::convolutions();
    autorep::comparisons();
    autorep::quadratics();
    return 0;
}
