"""Short comparison keys: shares must xor to the top bit of x - R, and keys look random."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autorep import _native

CASES = settings(max_examples=30)
AES_KEYS = bytes(range(100, 132))


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


def run(threshold: np.ndarray, x: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """The bits that both parties' shares xor to."""
    roots = words(rng, len(x), 2), words(rng, len(x), 2)
    keys = _native.sign_gen(threshold, n, *roots, AES_KEYS)
    shares = [_native.sign_eval(party, x, n, root, keys, AES_KEYS) for party, root in enumerate(roots)]
    return _native.from_bit_planes((shares[0] ^ shares[1]).reshape(1, -1), len(x))


def top_bits(threshold: np.ndarray, x: np.ndarray, n: int) -> np.ndarray:
    return (x - threshold) >> np.uint64(n) & np.uint64(1)


def expand(which: int, seed: int) -> int:
    """AES_k(s) ^ s, k the `which`-th key, on 128-bit little-endian integers."""
    encryptor = Cipher(algorithms.AES(AES_KEYS[16 * which :][:16]), modes.ECB()).encryptor()
    return int.from_bytes(encryptor.update(seed.to_bytes(16, "little")), "little") ^ seed


def slow_eval(party: int, x: int, n: int, root: np.ndarray, key: bytes) -> int:
    """One evaluation, written from the key layout with Python integers."""
    depth = max(0, n - 7)
    bits, leaf = int.from_bytes(key[16 * depth : -16], "little"), int.from_bytes(key[-16:], "little")
    start = int(root[0]) | int(root[1]) << 64
    seed, control, value = start & ~3, party, start >> 1 & 1
    for level in range(depth):
        stored = int.from_bytes(key[16 * level :][:16], "little")
        side = x >> (n - 1 - level) & 1
        child = expand(0, seed | side)
        flip = bits >> level & 1 if side else stored & 1
        value ^= (child ^ control * stored) >> 1 & 1
        seed, control = (child ^ control * stored) & ~3, (child & 1) ^ (control & flip)
    block = expand(1, seed) ^ control * leaf
    public = bits >> depth & 1 if party else x >> n & 1
    return value ^ public ^ (block >> (x % 2 ** min(n, 7)) & 1)


@CASES
@given(st.integers(1, 63), st.integers(1, 150), st.integers(0, 10**6))
@example(22, 64, 0)
@example(63, 5, 1)
@example(7, 130, 2)
@example(1, 65, 3)
def test_shares_xor_to_the_top_bit_of_the_difference(level: str, n: int, N: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    threshold = words(rng, N)
    near = threshold + rng.integers(-2, 3, N).astype(np.uint64)
    x = np.where(rng.random(N) < 0.5, words(rng, N), near)
    assert np.array_equal(run(threshold, x, n, rng), top_bits(threshold, x, n))


@pytest.mark.parametrize("n", [4, 8])
def test_every_pair_of_a_small_domain(level: str, n: int) -> None:
    step = 1 if n == 4 else 3
    values = np.arange(0, 2 ** (n + 1), step)
    threshold, x = (a.ravel().astype(np.uint64) for a in np.meshgrid(values, values))
    assert np.array_equal(run(threshold, x, n, np.random.default_rng(0)), top_bits(threshold, x, n))


def test_evaluation_follows_the_documented_layout(level: str) -> None:
    rng = np.random.default_rng(5)
    for n in (1, 7, 8, 22, 63):
        threshold, x, roots = words(rng, 3), words(rng, 3), (words(rng, 3, 2), words(rng, 3, 2))
        keys = _native.sign_gen(threshold, n, *roots, AES_KEYS)
        for party in (0, 1):
            found = int(_native.sign_eval(party, x, n, roots[party], keys, AES_KEYS)[0])
            expected = [slow_eval(party, int(x[i]), n, roots[party][i], keys[i].tobytes()) for i in range(3)]
            assert [found >> i & 1 for i in range(64)] == expected + [0] * 61


def test_levels_make_the_same_keys_and_shares() -> None:
    made = {}
    for level in ("portable", "avx2-aesni", "avx2", "avx512"):
        try:
            _native.set_simd(level)
        except ValueError:
            continue
        rng = np.random.default_rng(9)
        threshold, x, root0, root1 = words(rng, 101), words(rng, 101), words(rng, 101, 2), words(rng, 101, 2)
        keys = _native.sign_gen(threshold, 22, root0, root1, AES_KEYS)
        made[level] = keys.tobytes(), _native.sign_eval(1, x, 22, root1, keys, AES_KEYS).tobytes()
    _native.set_simd("auto")
    assert len(set(made.values())) == 1


def test_threads_do_not_change_the_result(level: str) -> None:
    rng = np.random.default_rng(11)
    threshold, x = words(rng, 5001), words(rng, 5001)
    _native.set_threads(2)
    try:
        assert np.array_equal(run(threshold, x, 22, rng), top_bits(threshold, x, 22))
    finally:
        _native.set_threads(1)


def test_one_share_and_every_bit_of_a_key_are_balanced(level: str) -> None:
    """For one threshold and one point, over many roots."""
    rng, count = np.random.default_rng(13), 4096
    threshold, x = np.full(count, 1000, np.uint64), np.full(count, 3, np.uint64)
    roots = words(rng, count, 2), words(rng, count, 2)
    keys = _native.sign_gen(threshold, 22, *roots, AES_KEYS)
    shares = [_native.sign_eval(party, x, 22, root, keys, AES_KEYS) for party, root in enumerate(roots)]
    bits = np.unpackbits(keys, axis=1)
    for ones in (*(np.unpackbits(share.view(np.uint8)).sum() for share in shares), *bits.sum(axis=0)):
        assert abs(int(ones) - count / 2) < 6.5 * np.sqrt(count) / 2


def test_key_size_is_the_documented_one() -> None:
    assert [_native.sign_key_bytes(n) for n in (1, 7, 8, 22, 63)] == [17, 17, 33, 258, 920]
    with pytest.raises(ValueError, match="valid are 1 to 63"):
        _native.sign_key_bytes(64)


def test_aes_keys_separate_batches(level: str) -> None:
    """Same roots, other AES keys: other keys, and a share evaluated under the wrong ones is noise."""
    rng = np.random.default_rng(17)
    threshold, roots = words(rng, 640), (words(rng, 640, 2), words(rng, 640, 2))
    other = AES_KEYS[:-1] + b"\0"  # only the leaf's key differs
    keys = [_native.sign_gen(threshold, 22, *roots, aes_keys) for aes_keys in (AES_KEYS, other)]
    assert not np.array_equal(*keys)
    shares = [_native.sign_eval(0, threshold, 22, roots[0], keys[0], aes_keys) for aes_keys in (AES_KEYS, other)]
    assert 0.3 < np.unpackbits((shares[0] ^ shares[1]).view(np.uint8)).mean() < 0.7
    with pytest.raises(ValueError, match="expected two keys"):
        _native.sign_eval(0, threshold, 22, roots[0], keys[0], b"short")
