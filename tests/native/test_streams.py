"""Kernels that read key streams and packed words in blocks, against the same steps one at a time in Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep import _native

CASES = settings(max_examples=20)
FULL = 2**64


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, FULL, shape, dtype=np.uint64)


def stream(key: bytes, count: int, bits: int) -> np.ndarray:
    return _native.prg(key, np.empty(count, np.uint64), bits)


@CASES
@given(st.integers(0, 1500), st.integers(1, 64), st.integers(0, 999))
def test_sum_of_streams_and_packed_differences(level: str, count: int, bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    key0, key1, mask = rng.bytes(16), rng.bytes(16), np.uint64(2**bits - 1)
    both, value = stream(key0, count, bits) + stream(key1, count, bits), words(rng, count)
    assert np.array_equal(_native.prg_sum(key0, key1, count, bits), both & mask)
    assert np.array_equal(_native.prg_sum(key0, key1, count, bits, value), (both - value) & mask)
    difference = _native.unpack(_native.share_packed(value, key0, bits), count, bits)
    assert np.array_equal((difference + stream(key0, count, bits)) & mask, value & mask)


def some_positions(rng: np.random.Generator, channels: int, per_channel: int) -> np.ndarray:
    size = channels * per_channel
    return np.sort(rng.permutation(size)[: rng.integers(1, size + 1)]).astype(np.int64)


@CASES
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 300), st.booleans(), st.booleans(), st.integers(0, 999))
def test_material_follows_its_formula(
    level: str, N: int, channels: int, per_channel: int, wraps: bool, expanded: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    index, power = some_positions(rng, channels, per_channel), int(rng.integers(1, 40))
    shape, bits = (N, index.size), [64] * 3 + [64 - power] * (4 * wraps)
    a, b = words(rng, channels), words(rng, channels)
    keys = [rng.bytes(16) for _ in bits]
    values = [stream(key, N * index.size, width) for key, width in zip(keys, bits)]
    sources = keys if expanded else [_native.pack(value, width) for value, width in zip(values, bits)]
    found = _native.quadratic_material(sources, bits, shape, index, per_channel, a, b, power)
    for e in range(N * index.size):
        channel = int(index[e % index.size]) // per_channel
        ca, cb = int(a[channel]), int(b[channel])
        r, alpha_r, square, *wrap = (int(value[e]) for value in values)
        p, q = ca * r - alpha_r, ca * square - cb * r
        m, alpha_m, product, wrap_rest = wrap or (0, 0, 0, 0)
        p1 = p - (ca * m - alpha_m) * 2**power
        q1 = q + (ca * (m * 2**power - 2 * product) + cb * m + wrap_rest) * 2**power
        assert [int(array.reshape(-1)[e]) for array in found] == [value % FULL for value in (p, p1, q, q1)]


@CASES
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 300), st.booleans(), st.integers(0, 999))
def test_differences_and_streams_add_up_to_the_parts(
    level: str, N: int, channels: int, per_channel: int, wraps: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    index, bits = some_positions(rng, channels, per_channel), int(rng.integers(10, 64))
    shift = int(rng.integers(0, bits))
    power = bits - shift
    widths = [64] * 3 + ([max(1, 64 - power)] * 4 if wraps else [])
    keys = [rng.bytes(16) for _ in widths]
    r = words(rng, N, index.size) & np.uint64(2**bits - 1)
    alpha, beta = words(rng, channels), words(rng, channels)
    packed, rest = _native.quadratic_differences(r, keys, widths, index, per_channel, alpha, beta, bits, shift)
    sums = [
        _native.unpack(part, r.size, width) + stream(key, r.size, width)
        for part, key, width in zip(packed, keys, widths)
    ]
    for e in range(r.size):
        channel = int(index[e % index.size]) // per_channel
        al, be, mask = int(alpha[channel]), int(beta[channel]), int(r.reshape(-1)[e])
        R, m = mask >> shift, mask >> (bits - 1)
        parts = [R, al * R, R * R, m, al * m, R * m, al * (2 * R * m - m * 2**power) - be * m]
        assert int(rest.reshape(-1)[e]) == (be * R - al * R * R) % FULL
        for found, part, width in zip(sums, parts, widths):
            assert int(found[e]) % 2**width == part % 2**width


def test_threads_do_not_change_the_result(level: str) -> None:
    rng = np.random.default_rng(3)
    index, keys, bits = np.arange(60_000, dtype=np.int64), [rng.bytes(16) for _ in range(7)], [64] * 3 + [40] * 4
    r, a, b = words(rng, 2, index.size) & np.uint64(2**44 - 1), words(rng, 60), words(rng, 60)

    def both() -> list[np.ndarray]:
        material = _native.quadratic_material(keys, bits, r.shape, index, 1000, a, b, 24)
        differences, rest = _native.quadratic_differences(r, keys, bits, index, 1000, a, b, 44, 20)
        return [*material, *differences, rest]

    one = both()
    _native.set_threads(2)
    try:
        assert all(np.array_equal(x, y) for x, y in zip(one, both(), strict=True))
    finally:
        _native.set_threads(1)


def test_mistakes_are_named() -> None:
    rng = np.random.default_rng(0)
    index, a = np.arange(10, dtype=np.int64), words(rng, 1)
    with pytest.raises(ValueError, match="4 parts of 4 widths: valid are 3 and 7"):
        _native.quadratic_material([bytes(16)] * 4, [64] * 4, (1, 10), index, 10, a, a, 5)
    with pytest.raises(ValueError, match=r"sources\[0\]: expected shape \(80\), found \(79,\)"):
        _native.quadratic_material([np.zeros(79, np.uint8)] * 3, [64] * 3, (1, 10), index, 10, a, a, 5)
    with pytest.raises(IndexError, match="outside an image of 5 elements"):
        _native.quadratic_material([bytes(16)] * 3, [64] * 3, (1, 10), index, 5, a, a, 5)
    with pytest.raises(ValueError, match="key: expected 16 bytes, found 3"):
        _native.share_packed(a, b"abc", 5)
