// Short comparison keys for any AES, and the Python entry points.
#include "sign.h"

#include "bindings.h"
#include "sign_tree.h"

namespace autorep {
namespace {

struct PortableLanes {
    using Register = Block;
    using Cipher = SignCipher;
    static constexpr int kKeys = 1;

    static Register pair(u64 lo, u64 hi) { return {lo, hi}; }
    static Register twice(const u64* x, int left) { return {x[0] << left, x[0] << left}; }
    static Register load_words(const u64* from) { return {from[0], from[1]}; }
    static void store_words(u64* to, Register x) { std::memcpy(to, &x, 16); }
    static Register load_rows(const u8* from, i64) {
        Register x;
        std::memcpy(&x, from, 16);
        return x;
    }
    static void store_rows(u8* to, i64, Register x) { std::memcpy(to, &x, 16); }

    static Register both(Register x, Register y) { return {x.lo & y.lo, x.hi & y.hi}; }
    static Register either(Register x, Register y) { return {x.lo | y.lo, x.hi | y.hi}; }
    static Register differ(Register x, Register y) { return {x.lo ^ y.lo, x.hi ^ y.hi}; }
    static Register select(Register mask, Register if_set, Register otherwise) {
        return differ(otherwise, both(differ(otherwise, if_set), mask));
    }
    static Register left_by_one(Register x) { return {x.lo << 1, x.hi << 1}; }
    static Register right_by_one(Register x) { return {x.lo >> 1, x.hi >> 1}; }
    static Register left_by(Register x, int by) { return {x.lo << by, x.hi << by}; }
    static Register top(Register x) { return {u64(0) - (x.lo >> 63), u64(0) - (x.hi >> 63)}; }
    template <int Bit>
    static Register spread(Register x) {
        const u64 bit = u64(0) - ((x.lo >> Bit) & 1);
        return {bit, bit};
    }
    template <int Blocks>
    static void hash(const AesKey& key, const Register (&in)[Blocks], Register (&out)[Blocks]) {
        aes_ops().mmo(key, in, out, Blocks);
    }
};

SignGen* sign_gen_of_level() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return sign_gen_avx512;
    if (simd_level() == Simd::avx2) return vector_aes() ? sign_gen_vaes : sign_gen_avx2;
#endif
    return SignTree<PortableLanes>::gen<16>;
}

SignEval* sign_eval_of_level() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return sign_eval_avx512;
    if (simd_level() == Simd::avx2) return vector_aes() ? sign_eval_vaes : sign_eval_avx2;
#endif
    return SignTree<PortableLanes>::eval<32>;
}

SignCipher sign_cipher(Bytes keys) { return {aes_expand(keys.data()), aes_expand(keys.data() + 16)}; }

void sign_gen(Words threshold, int n, Words root0, Words root1, Bytes aes_keys, BytesOut keys) {
    const SignShape shape = sign_shape(n);
    const SignCipher cipher = sign_cipher(aes_keys);
    SignGen* const gen = sign_gen_of_level();
    parallel_ranges(static_cast<i64>(threshold.size()), 128, [&](i64 begin, i64 end) {
        gen(shape, cipher, end - begin, threshold.data() + begin, root0.data() + 2 * begin, root1.data() + 2 * begin,
            keys.data() + begin * shape.key_bytes);
    });
}

void sign_eval(int party, Words x, int n, Words root, Bytes keys, Bytes aes_keys, WordsOut planes) {
    const SignShape shape = sign_shape(n);
    const SignCipher cipher = sign_cipher(aes_keys);
    SignEval* const eval = sign_eval_of_level();
    const i64 count = static_cast<i64>(x.size());
    parallel_ranges(ceil_div(count, 64), 8, [&](i64 begin, i64 end) {
        const i64 first = 64 * begin, last = 64 * end < count ? 64 * end : count;
        eval(shape, cipher, last - first, party, x.data() + first, root.data() + 2 * first,
             keys.data() + first * shape.key_bytes, planes.data() + begin);
    });
}

}  // namespace

SignShape sign_shape(int n) {
    SignShape shape = {};
    shape.n = n;
    shape.depth = n > kLeafLevels ? n - kLeafLevels : 0;
    shape.bits_at = 16 * shape.depth;
    shape.leaf_at = shape.bits_at + ceil_div(shape.depth + 1, 8);
    shape.key_bytes = shape.leaf_at + 16;
    return shape;
}

void register_sign(nb::module_& m) {
    m.def("sign_key_bytes", [](int n) { return sign_shape(n).key_bytes; });
    m.def("sign_gen", &sign_gen, NoGil());
    m.def("sign_eval", &sign_eval, NoGil());
}

}  // namespace autorep
