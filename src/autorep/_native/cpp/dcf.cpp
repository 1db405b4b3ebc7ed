// DCF key generation and evaluation for any AES: batches of keys, level by level; and the Python entry points.
#include "dcf.h"

#include <cstring>

#include "bindings.h"
#include "dcf_payload.h"

namespace autorep {
namespace {

constexpr i64 kBatch = 32;  // keys that walk the tree together, to fill the cipher's pipeline

u64 select(u64 mask, u64 if_set, u64 otherwise) { return otherwise ^ ((otherwise ^ if_set) & mask); }
Block select(u64 mask, Block if_set, Block otherwise) {
    return {select(mask, if_set.lo, otherwise.lo), select(mask, if_set.hi, otherwise.hi)};
}

Block load_block(const u8* from) {
    Block block;
    std::memcpy(&block, from, 16);
    return block;
}

// sign * value where negative is 0 or all ones: two's complement without a branch.
u64 signed_by(u64 negative, u64 value) { return (value ^ negative) - negative; }

struct Walk {  // one party's state at the current node of the path towards alpha
    Block seed[kBatch], left[kBatch], right[kBatch], left_value[kBatch], right_value[kBatch];
    u64 control[kBatch];  // 0 or all ones
};

void gen_batch(const DcfShape& shape, const DcfCipher& cipher, i64 count, const u64* alpha, const u64* beta,
               const u64* root0, const u64* root1, u8* keys) {
    const AesOps& aes = aes_ops();
    Walk walk[2];
    Payload sum[kBatch] = {};
    for (i64 i = 0; i < count; ++i) {
        walk[0].seed[i] = {root0[2 * i] & ~u64(1), root0[2 * i + 1]};
        walk[1].seed[i] = {root1[2 * i] & ~u64(1), root1[2 * i + 1]};
        walk[0].control[i] = 0;
        walk[1].control[i] = ~u64(0);
        std::memset(keys + i * shape.key_bytes + shape.right_bits_at, 0, static_cast<size_t>(ceil_div(shape.n, 8)));
    }
    for (int level = 0; level < shape.n; ++level) {
        for (Walk& w : walk) {
            Block sided[kBatch];
            for (i64 i = 0; i < count; ++i) sided[i] = {w.seed[i].lo | 1, w.seed[i].hi};
            aes.mmo(cipher.seed, w.seed, w.left, count);
            aes.mmo(cipher.seed, sided, w.right, count);
            aes.mmo(cipher.value, w.seed, w.left_value, count);
            aes.mmo(cipher.value, sided, w.right_value, count);
        }
        for (i64 i = 0; i < count; ++i) {
            const u64 bit = (alpha[i] >> (shape.n - 1 - level)) & 1, right = u64(0) - bit;
            u8* key = keys + i * shape.key_bytes;
            u64 left_bit = bit ^ 1, right_bit = bit;
            for (Walk& w : walk) {
                left_bit ^= w.left[i].lo & 1;
                right_bit ^= w.right[i].lo & 1;
            }
            Block lose[2];
            for (int b = 0; b < 2; ++b) lose[b] = select(right, walk[b].left[i], walk[b].right[i]);
            const Block seed_correction = {(lose[0].lo ^ lose[1].lo) & ~u64(1), lose[0].hi ^ lose[1].hi};

            const u64 negative = walk[1].control[i];
            Payload lost[2], kept[2], correction;
            for (int b = 0; b < 2; ++b) {
                lost[b] = payload_of(select(right, walk[b].left_value[i], walk[b].right_value[i]), shape);
                kept[b] = payload_of(select(right, walk[b].right_value[i], walk[b].left_value[i]), shape);
            }
            for (int k = 0; k < 3; ++k) {
                const u64 gained = beta[3 * i + k] & right;  // going right means every left neighbour is smaller
                correction.v[k] = signed_by(negative, lost[1].v[k] - lost[0].v[k] - sum[i].v[k] + gained);
                sum[i].v[k] += kept[0].v[k] - kept[1].v[k] + signed_by(negative, correction.v[k]);
            }
            for (Walk& w : walk) {
                const Block child = select(right, w.right[i], w.left[i]);
                const u64 child_bit = (child.lo & 1) ^ (select(right, right_bit, left_bit) & w.control[i] & 1);
                w.seed[i] = {(child.lo & ~u64(1)) ^ (seed_correction.lo & w.control[i]),
                             child.hi ^ (seed_correction.hi & w.control[i])};
                w.control[i] = u64(0) - child_bit;
            }
            const Block stored = {seed_correction.lo | left_bit, seed_correction.hi};
            std::memcpy(key + level * shape.level_bytes, &stored, 16);
            store_payload(correction, shape, key + level * shape.level_bytes + 16);
            key[shape.right_bits_at + level / 8] |= static_cast<u8>(right_bit << (level & 7));
        }
    }
    for (Walk& w : walk) aes.mmo(cipher.value, w.seed, w.left_value, count);
    for (i64 i = 0; i < count; ++i) {
        const Payload leaf0 = payload_of(walk[0].left_value[i], shape), leaf1 = payload_of(walk[1].left_value[i], shape);
        Payload last;
        for (int k = 0; k < 3; ++k)
            last.v[k] = signed_by(walk[1].control[i], leaf1.v[k] - leaf0.v[k] - sum[i].v[k]);
        store_payload(last, shape, keys + i * shape.key_bytes + shape.last_at);
    }
}

void eval_batch(const DcfShape& shape, const DcfCipher& cipher, i64 count, int party, const u64* x, const u64* root,
                const u8* keys, u64* out) {
    const AesOps& aes = aes_ops();
    Block seed[kBatch], child[kBatch], value[kBatch];
    u64 control[kBatch], right[kBatch];
    Payload sum[kBatch] = {};
    for (i64 i = 0; i < count; ++i) {
        seed[i] = {root[2 * i] & ~u64(1), root[2 * i + 1]};
        control[i] = u64(0) - static_cast<u64>(party);
    }
    for (int level = 0; level < shape.n; ++level) {
        for (i64 i = 0; i < count; ++i) {
            const u64 bit = (x[i] >> (shape.n - 1 - level)) & 1;
            right[i] = u64(0) - bit;
            seed[i].lo |= bit;
        }
        aes.mmo(cipher.seed, seed, child, count);
        aes.mmo(cipher.value, seed, value, count);
        for (i64 i = 0; i < count; ++i) {
            const u8* key = keys + i * shape.key_bytes;
            const Block stored = load_block(key + level * shape.level_bytes);
            const Payload correction = load_payload(key + level * shape.level_bytes + 16, shape);
            const Payload own = payload_of(value[i], shape);
            for (int k = 0; k < 3; ++k) sum[i].v[k] += own.v[k] + (correction.v[k] & control[i]);
            const u64 right_bit = (key[shape.right_bits_at + level / 8] >> (level & 7)) & 1;
            const u64 bit = (child[i].lo ^ (select(right[i], right_bit, stored.lo) & control[i])) & 1;
            seed[i] = {(child[i].lo ^ (stored.lo & control[i])) & ~u64(1), child[i].hi ^ (stored.hi & control[i])};
            control[i] = u64(0) - bit;
        }
    }
    aes.mmo(cipher.value, seed, value, count);
    const u64 negative = u64(0) - static_cast<u64>(party);
    for (i64 i = 0; i < count; ++i) {
        const Payload last = load_payload(keys + i * shape.key_bytes + shape.last_at, shape);
        const Payload own = payload_of(value[i], shape);
        for (int k = 0; k < 3; ++k)
            sum[i].v[k] = signed_by(negative, sum[i].v[k] + own.v[k] + (last.v[k] & control[i]));
        const Payload result = reduce(sum[i], shape);
        std::memcpy(out + 3 * i, result.v, 24);
    }
}

void dcf_gen_batched(const DcfShape& shape, const DcfCipher& cipher, i64 count, const u64* alpha, const u64* beta,
                     const u64* root0, const u64* root1, u8* keys) {
    for (i64 i = 0; i < count; i += kBatch)
        gen_batch(shape, cipher, count - i < kBatch ? count - i : kBatch, alpha + i, beta + 3 * i, root0 + 2 * i,
                  root1 + 2 * i, keys + i * shape.key_bytes);
}

void dcf_eval_batched(const DcfShape& shape, const DcfCipher& cipher, i64 count, int party, const u64* x,
                      const u64* root, const u8* keys, u64* out) {
    for (i64 i = 0; i < count; i += kBatch)
        eval_batch(shape, cipher, count - i < kBatch ? count - i : kBatch, party, x + i, root + 2 * i,
                   keys + i * shape.key_bytes, out + 3 * i);
}

DcfGen* dcf_gen_of_level() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return dcf_gen_avx512;
    if (simd_level() == Simd::avx2) return vector_aes() ? dcf_gen_vaes : dcf_gen_avx2;
#endif
    return dcf_gen_batched;
}

DcfEval* dcf_eval_of_level() {
#if AUTOREP_X86
    if (simd_level() == Simd::avx512) return dcf_eval_avx512;
    if (simd_level() == Simd::avx2) return vector_aes() ? dcf_eval_vaes : dcf_eval_avx2;
#endif
    return dcf_eval_batched;
}

// The schedules of two AES keys. A thread works on one query at a time, whose layers share their keys: the last stays.
DcfCipher dcf_cipher(Bytes keys) {
    struct Known {
        u8 keys[32];
        DcfCipher cipher;
    };
    thread_local Known known = {{}, {aes_expand(Known{}.keys), aes_expand(Known{}.keys)}};
    if (std::memcmp(known.keys, keys.data(), 32) != 0) {
        known.cipher = {aes_expand(keys.data()), aes_expand(keys.data() + 16)};
        std::memcpy(known.keys, keys.data(), 32);
    }
    return known.cipher;
}

void dcf_gen(Words alpha, Words beta, int n, int L, int F, Words root0, Words root1, Bytes aes_keys, BytesOut keys) {
    const DcfShape shape = dcf_shape(n, L, F);
    const DcfCipher cipher = dcf_cipher(aes_keys);
    DcfGen* const gen = dcf_gen_of_level();
    parallel_ranges(static_cast<i64>(alpha.size()), 64, [&](i64 begin, i64 end) {
        gen(shape, cipher, end - begin, alpha.data() + begin, beta.data() + 3 * begin, root0.data() + 2 * begin,
            root1.data() + 2 * begin, keys.data() + begin * shape.key_bytes);
    });
}

void dcf_eval(int party, Words x, int n, int L, int F, Words root, Bytes keys, Bytes aes_keys, WordsOut out) {
    const DcfShape shape = dcf_shape(n, L, F);
    const DcfCipher cipher = dcf_cipher(aes_keys);
    DcfEval* const eval = dcf_eval_of_level();
    parallel_ranges(static_cast<i64>(x.size()), 128, [&](i64 begin, i64 end) {
        eval(shape, cipher, end - begin, party, x.data() + begin, root.data() + 2 * begin,
             keys.data() + begin * shape.key_bytes, out.data() + 3 * begin);
    });
}

}  // namespace

DcfShape dcf_shape(int n, int L, int F) {
    DcfShape shape = {};
    shape.n = n;
    shape.L = L;
    shape.F = F;
    shape.value_bytes = ceil_div(2 * L + F, 8);
    shape.level_bytes = 16 + shape.value_bytes;
    shape.right_bits_at = n * shape.level_bytes;
    shape.last_at = shape.right_bits_at + ceil_div(n, 8);
    shape.key_bytes = shape.last_at + shape.value_bytes;
    return shape;
}

void register_dcf(nb::module_& m) {
    m.def("dcf_key_bytes", [](int n, int L, int F) { return dcf_shape(n, L, F).key_bytes; });
    m.def("dcf_gen", &dcf_gen, NoGil());
    m.def("dcf_eval", &dcf_eval, NoGil());
}

}  // namespace autorep
