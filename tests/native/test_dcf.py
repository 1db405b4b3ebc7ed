"""Distributed comparison: shares must add up to beta * [x < alpha], and keys look random."""

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


def cut(values: np.ndarray, L: int, F: int) -> np.ndarray:
    return values & np.array([2**L - 1, 2**L - 1, 2**F - 1], np.uint64)


def run(
    alpha: np.ndarray, x: np.ndarray, beta: np.ndarray, n: int, L: int, F: int, rng: np.random.Generator
) -> np.ndarray:
    root0, root1 = words(rng, len(alpha), 2), words(rng, len(alpha), 2)
    keys = _native.dcf_gen(alpha, beta, n, L, F, root0, root1, AES_KEYS)
    shares = [_native.dcf_eval(party, x, n, L, F, root, keys, AES_KEYS) for party, root in ((0, root0), (1, root1))]
    for share in shares:
        assert np.array_equal(share, cut(share, L, F))
    return cut(shares[0] + shares[1], L, F)


def expand(which: int, seed: int) -> int:
    """AES_k(s) ^ s, k the `which`-th key, on 128-bit little-endian integers."""
    encryptor = Cipher(algorithms.AES(AES_KEYS[16 * which :][:16]), modes.ECB()).encryptor()
    return int.from_bytes(encryptor.update(seed.to_bytes(16, "little")), "little") ^ seed


def slow_eval(party: int, x: int, n: int, L: int, F: int, root: np.ndarray, key: bytes) -> list[int]:
    """One evaluation, written from the key layout with Python integers."""
    rings, value_bytes = (2**L, 2**L, 2**F), -(-(2 * L + F) // 8)
    right_bits = int.from_bytes(key[n * (16 + value_bytes) : n * (16 + value_bytes) + -(-n // 8)], "little")

    def payload(block: int) -> tuple[int, int, int]:
        low, high = block % 2**64, block >> 64
        return low, high, (low >> L) + ((high >> L) << (64 - L))

    def correction(data: bytes) -> tuple[int, int, int]:
        number = int.from_bytes(data, "little")
        return number % 2**L, (number >> L) % 2**L, (number >> 2 * L) % 2**F

    seed, control, total = (int(root[0]) | int(root[1]) << 64) & ~1, party, [0, 0, 0]
    for level in range(n):
        part = key[level * (16 + value_bytes) :][: 16 + value_bytes]
        side = (x >> (n - 1 - level)) & 1
        stored = int.from_bytes(part[:16], "little")
        own, fix = payload(expand(1, seed | side)), correction(part[16:])
        total = [t + v + control * f for t, v, f in zip(total, own, fix)]
        child = expand(0, seed | side)
        flip = (right_bits >> level) & 1 if side else stored & 1
        seed, control = (child ^ control * stored) & ~1, (child & 1) ^ (control & flip)
    own, fix = payload(expand(1, seed)), correction(key[-value_bytes:])
    total = [t + v + control * f for t, v, f in zip(total, own, fix)]
    return [(-t if party else t) % ring for t, ring in zip(total, rings)]


@CASES
@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 64), st.integers(1, 70), st.integers(0, 10**6))
@example(22, 44, 16, 64, 0)
@example(64, 64, 0, 5, 1)
@example(30, 33, 62, 9, 2)
@example(5, 20, 64, 9, 3)
def test_shares_add_up_to_beta_where_x_is_smaller(level: str, n: int, L: int, F: int, N: int, seed: int) -> None:
    F = min(F, 128 - 2 * L)
    rng = np.random.default_rng(seed)
    domain = np.uint64(2**n - 1)
    alpha, beta = words(rng, N) & domain, cut(words(rng, N, 3), L, F)
    near = alpha + rng.integers(-2, 3, N).astype(np.uint64)
    x = np.where(rng.random(N) < 0.5, words(rng, N), near) & domain
    expected = np.where((x < alpha)[:, None], beta, np.uint64(0))
    assert np.array_equal(run(alpha, x, beta, n, L, F, rng), expected)


def test_every_pair_of_a_small_domain(level: str) -> None:
    alpha, x = (a.ravel().astype(np.uint64) for a in np.meshgrid(np.arange(32), np.arange(32)))
    beta = np.tile(np.array([[1, 12345, 1]], np.uint64), (1024, 1))
    expected = np.where((x < alpha)[:, None], beta, np.uint64(0))
    assert np.array_equal(run(alpha, x, beta, 5, 44, 16, np.random.default_rng(0)), expected)


def test_evaluation_follows_the_documented_layout(level: str) -> None:
    rng = np.random.default_rng(5)
    for n, L, F in ((22, 44, 16), (7, 64, 0), (9, 13, 5), (3, 60, 8)):
        alpha, x = words(rng, 3) & np.uint64(2**n - 1), words(rng, 3) & np.uint64(2**n - 1)
        roots = [words(rng, 3, 2), words(rng, 3, 2)]
        keys = _native.dcf_gen(alpha, words(rng, 3, 3), n, L, F, *roots, AES_KEYS)
        for party in (0, 1):
            found = _native.dcf_eval(party, x, n, L, F, roots[party], keys, AES_KEYS)
            for i in range(3):
                expected = slow_eval(party, int(x[i]), n, L, F, roots[party][i], keys[i].tobytes())
                assert [int(v) for v in found[i]] == expected


def test_levels_make_the_same_keys_and_shares() -> None:
    made = {}
    for level in ("portable", "avx2-aesni", "avx2", "avx512"):
        try:
            _native.set_simd(level)
        except ValueError:
            continue
        rng = np.random.default_rng(9)
        alpha, beta, root0, root1 = words(rng, 37), words(rng, 37, 3), words(rng, 37, 2), words(rng, 37, 2)
        keys = _native.dcf_gen(alpha & np.uint64(2**22 - 1), beta, 22, 44, 16, root0, root1, AES_KEYS)
        made[level] = (
            keys.tobytes(),
            _native.dcf_eval(1, beta[:, 0] >> np.uint64(42), 22, 44, 16, root1, keys, AES_KEYS).tobytes(),
        )
    _native.set_simd("auto")
    assert len(set(made.values())) == 1


def test_threads_do_not_change_the_result(level: str) -> None:
    rng = np.random.default_rng(11)
    alpha, x = words(rng, 5000) & np.uint64(2**22 - 1), words(rng, 5000) & np.uint64(2**22 - 1)
    beta = cut(words(rng, 5000, 3), 44, 16)
    _native.set_threads(2)
    try:
        assert np.array_equal(run(alpha, x, beta, 22, 44, 16, rng), np.where((x < alpha)[:, None], beta, np.uint64(0)))
    finally:
        _native.set_threads(1)


def test_one_share_alone_looks_uniform(level: str) -> None:
    rng = np.random.default_rng(13)
    alpha, x = np.full(4000, 1000, np.uint64), np.full(4000, 3, np.uint64)
    beta = np.tile(np.array([[1, 7, 1]], np.uint64), (4000, 1))
    root0, root1 = words(rng, 4000, 2), words(rng, 4000, 2)
    keys = _native.dcf_gen(alpha, beta, 22, 44, 16, root0, root1, AES_KEYS)
    share = _native.dcf_eval(0, x, 22, 44, 16, root0, keys, AES_KEYS)
    for values in (
        (share[:, 0] >> np.uint64(36)),
        share[:, 2] >> np.uint64(8),
        keys[:, -13:].ravel(),
        keys[:, 1:29].ravel(),
    ):
        counts = np.bincount(values.astype(np.int64) & 255, minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 400  # 255 degrees of freedom: 6 sigma


def test_key_size_is_the_documented_one() -> None:
    assert _native.dcf_key_bytes(22, 44, 16) == 654
    with pytest.raises(ValueError, match="2L \\+ F <= 128"):
        _native.dcf_key_bytes(22, 60, 16)


def test_aes_keys_separate_batches(level: str) -> None:
    """Same roots, other AES keys: other keys, and a share evaluated under the wrong ones is noise."""
    rng = np.random.default_rng(17)
    alpha, beta, roots = words(rng, 64) >> np.uint64(42), words(rng, 64, 3), (words(rng, 64, 2), words(rng, 64, 2))
    other = AES_KEYS[:-1] + b"\0"  # only the value's key differs
    keys = [_native.dcf_gen(alpha, beta, 22, 44, 16, *roots, aes_keys) for aes_keys in (AES_KEYS, other)]
    assert not np.array_equal(*keys)
    shares = [_native.dcf_eval(0, alpha, 22, 44, 16, roots[0], keys[0], aes_keys) for aes_keys in (AES_KEYS, other)]
    assert not np.any(shares[0][:, 0] == shares[1][:, 0])
    with pytest.raises(ValueError, match="expected two keys"):
        _native.dcf_eval(0, alpha, 22, 44, 16, roots[0], keys[0], b"short")
