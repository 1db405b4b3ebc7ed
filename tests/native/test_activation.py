"""Quadratic and ReLU shares, gather and scatter against numpy written out step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep import _native

CASES = settings(max_examples=25)


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


@CASES
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 60), st.integers(10, 64), st.integers(0, 9999))
def test_quadratic_share_follows_its_formula(
    level: str, N: int, channels: int, per_channel: int, bits: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    size, shift = channels * per_channel, int(rng.integers(0, bits - 1))
    index = np.sort(rng.permutation(size)[: rng.integers(0, size + 1)]).astype(np.int64)
    opened = words(rng, N, size) & np.uint64(2**bits - 1)
    p0, p1, q0, q1, mask = (words(rng, N, index.size) for _ in range(5))
    a, b, c = (words(rng, channels) for _ in range(3))
    found = _native.quadratic_share(opened, index, per_channel, bits, shift, p0, p1, q0, q1, a, b, c, mask)
    for i in range(N):
        for k, position in enumerate(index):
            y, ch = int(opened[i, position]), int(position) // per_channel
            upper = 1 - (y >> (bits - 1))
            t = (y >> shift) - (1 << (bits - 2 - shift))
            p, q = int((p1 if upper else p0)[i, k]), int((q1 if upper else q0)[i, k])
            z = int(a[ch]) * t * t - 2 * t * p + q + int(b[ch]) * t + int(c[ch]) + int(mask[i, k])
            assert int(found[i, k]) == z % 2**64


@CASES
@given(st.integers(0, 200), st.integers(2, 64), st.integers(0, 1), st.booleans(), st.integers(0, 9999))
def test_relu_share_follows_its_formula(level: str, n: int, L: int, one: int, compared: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shift = int(rng.integers(1, L + 1))
    T, R, m, s, sR, sm = (words(rng, n) for _ in range(6))
    v, c1, sign, bit = words(rng, n, 3), words(rng, n) & np.uint64(1), words(rng, n), int(rng.integers(0, 64))
    v *= np.uint64(compared)
    found = _native.relu_share(T, c1, sign, bit, one, v if compared else None, R, m, s, sR, sm, L, shift)
    for i in range(n):
        d, dR, dm = (int(value) + int(add[i]) for value, add in zip(v[i], (s, sR, sm)))
        if not int(sign[i]) >> bit & 1:
            d, dR, dm = one - d, int(R[i]) - dR, int(m[i]) - dm
        assert int(found[i]) == (int(T[i]) * d - dR + ((int(c1[i]) * dm) << (L - shift))) % 2**64


@CASES
@given(st.integers(1, 3), st.integers(1, 200), st.integers(2, 64), st.integers(0, 9999))
def test_gather_lifted_follows_its_formula(level: str, N: int, size: int, bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    index, shift = rng.permutation(size)[: rng.integers(0, size + 1)].astype(np.int64), int(rng.integers(0, bits - 1))
    source = words(rng, N, size) & np.uint64(2**bits - 1)
    found = _native.gather_lifted(source, index, bits, shift)
    taken = [int(y) for y in source[:, index].reshape(-1)]
    assert [int(public) for public in found[0]] == [((y >> shift) - (1 << (bits - 2 - shift))) % 2**64 for y in taken]
    assert [int(lifted) for lifted in found[1]] == [1 - (y >> (bits - 1)) for y in taken]


@CASES
@given(st.integers(1, 3), st.integers(1, 200), st.integers(0, 63), st.integers(0, 9999))
def test_gather_then_scatter_shift(level: str, N: int, size: int, shift: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    index = rng.permutation(size)[: rng.integers(0, size + 1)].astype(np.int64)
    source, out = words(rng, N, size), words(rng, N, size)
    expected = out.copy()
    expected[:, index] = source[:, index] >> np.uint64(shift)
    values = _native.gather(source, index)
    assert np.array_equal(values, source[:, index])
    _native.scatter_shift(out, index, values, shift)
    assert np.array_equal(out, expected)


@CASES
@given(st.integers(1, 3), st.sampled_from([1, 40, 3000]), st.integers(1, 64), st.integers(0, 63), st.integers(0, 99))
def test_scatter_opened_is_opening_then_scattering(
    level: str, N: int, size: int, bits: int, shift: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    index = rng.permutation(size)[: rng.integers(0, size + 1)].astype(np.int64)
    own, peer, out = words(rng, N, index.size), words(rng, N, index.size), words(rng, N, size)
    expected = out.copy()
    expected[:, index] = ((own + peer) & np.uint64(2**bits - 1)) >> np.uint64(shift)
    _native.scatter_opened(out, index, own, _native.pack(peer, bits), bits, shift)
    assert np.array_equal(out, expected)


def test_positions_outside_the_image_are_refused() -> None:
    source = np.zeros((1, 10), np.uint64)
    for bad in (10, -1):
        index = np.array([0, bad], np.int64)
        with pytest.raises(IndexError, match="outside an image of 10 elements"):
            _native.gather(source, index)
        with pytest.raises(IndexError, match="outside an image of 10 elements"):
            _native.gather_lifted(source, index, 44, 12)
        with pytest.raises(IndexError, match="outside an image of 10 elements"):
            _native.scatter_shift(source, index, np.zeros((1, 2), np.uint64))
        with pytest.raises(IndexError, match="outside an image of 10 elements"):
            _native.scatter_opened(source, index, np.zeros((1, 2), np.uint64), np.zeros(2, np.uint8), 8)
    around = np.array([0, 2**63 - 1, -(2**63), 5], np.int64)  # rises modulo 2**64, and both ends lie inside
    with pytest.raises(IndexError, match="outside an image of 10 elements"):
        _native.scatter_opened(source, around, np.zeros((1, 4), np.uint64), np.zeros(4, np.uint8), 8)
    with pytest.raises(ValueError, match=r"peer: expected shape \(2\), found \(3,\)"):
        _native.scatter_opened(source, np.array([0, 1]), np.zeros((1, 2), np.uint64), np.zeros(3, np.uint8), 8)
