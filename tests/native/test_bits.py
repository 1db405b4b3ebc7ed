"""Packing, bit planes and AND layers against Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep import _native

CASES = settings(max_examples=40)


def words(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, shape, dtype=np.uint64)


def packed_by_integers(x: np.ndarray, bits: int) -> bytes:
    total = sum((int(v) % 2**bits) << (bits * i) for i, v in enumerate(x))
    return total.to_bytes(-(-len(x) * bits // 8), "little")


@CASES
@given(st.integers(0, 300), st.integers(1, 64), st.integers(0, 1000))
def test_pack_writes_the_little_endian_number(level: str, n: int, bits: int, seed: int) -> None:
    x = words(seed, n)
    assert _native.pack(x, bits).tobytes() == packed_by_integers(x, bits)


@CASES
@given(st.integers(0, 300), st.integers(1, 64), st.integers(0, 1000))
def test_unpack_inverts_pack(level: str, n: int, bits: int, seed: int) -> None:
    x = words(seed, n)
    buffer = np.frombuffer(packed_by_integers(x, bits), np.uint8)
    assert [int(v) for v in _native.unpack(buffer, n, bits)] == [int(v) % 2**bits for v in x]


@CASES
@given(st.integers(0, 300), st.integers(1, 64), st.integers(0, 1000))
def test_open_packed_adds_modulo_two_to_the_bits(level: str, n: int, bits: int, seed: int) -> None:
    own, peer = words(seed, n), words(seed + 1, n)
    opened = _native.open_packed(own, _native.pack(peer, bits), bits)
    assert [int(v) for v in opened] == [(int(a) + int(b)) % 2**bits for a, b in zip(own, peer)]


@CASES
@given(st.sampled_from([0, 1, 63, 64, 300, 2047, 2048, 5000]), st.integers(1, 64), st.integers(0, 1000))
def test_mask_packed_adds_in_place_and_packs_the_sum(level: str, n: int, bits: int, seed: int) -> None:
    share, mask, offset = words(seed, n), words(seed + 1, n), 1 << (seed % 64)
    expected = share + mask + np.uint64(offset)
    packed = _native.mask_packed(share, mask, offset, bits)
    assert np.array_equal(mask, expected)
    assert np.array_equal(packed, _native.pack(expected, bits))


def test_packing_writes_to_the_given_bytes_alone(level: str) -> None:
    x, out = words(1, 100), np.full(600, 7, np.uint8)
    assert _native.pack(x, 44, out[3:553]).base is out
    assert np.array_equal(out[3:553], _native.pack(x, 44))
    assert (out[:3] == 7).all()
    assert (out[553:] == 7).all()


@pytest.mark.parametrize("bits", range(1, 65))
def test_every_width_packs_and_opens_long_arrays(level: str, bits: int) -> None:
    x, mask = words(bits, 203), np.uint64(2**bits - 1)
    packed = _native.pack(x, bits)
    assert packed.tobytes() == packed_by_integers(x, bits)
    assert np.array_equal(_native.unpack(packed, x.size, bits), x & mask)
    assert np.array_equal(_native.open_packed(x, packed, bits), (x + x) & mask)


def test_packing_gives_the_same_bytes_on_two_threads(level: str) -> None:
    x = words(3, 400_001)
    one = _native.pack(x, 44)
    _native.set_threads(2)
    try:
        two = _native.pack(x, 44)
        assert np.array_equal(_native.unpack(two, x.size, 44), x & np.uint64(2**44 - 1))
    finally:
        _native.set_threads(1)
    assert np.array_equal(one, two)


@CASES
@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 1000))
def test_bit_planes_hold_bit_j_of_every_element(level: str, n: int, k: int, seed: int) -> None:
    x = words(seed, n)
    planes = _native.bit_planes(x, k)
    assert planes.shape == (k, -(-n // 64))
    for j in range(k):
        expected = sum(((int(v) >> j) & 1) << i for i, v in enumerate(x))
        assert sum(int(w) << (64 * i) for i, w in enumerate(planes[j])) == expected
    assert [int(v) for v in _native.from_bit_planes(planes, n)] == [int(v) % 2**k for v in x]


def test_and_layer_shares_add_up_to_the_conjunction(level: str) -> None:
    x, y, a, b, a0, b0, c0 = (words(i, 3, 77) for i in range(7))
    d, e, c = x ^ a, y ^ b, a & b
    z0 = _native.and_layer(0, d, e, a0, b0, c0)
    z1 = _native.and_layer(1, d, e, a ^ a0, b ^ b0, c ^ c0)
    assert np.array_equal(z0 ^ z1, x & y)


def test_wrong_arguments_say_what_is_valid() -> None:
    with pytest.raises(ValueError, match="bits = 65: valid are 1 to 64"):
        _native.pack(words(0, 4), 65)
    with pytest.raises(TypeError, match="x: expected a numpy array of uint64, found int64"):
        _native.pack(np.zeros(4, np.int64), 8)
    with pytest.raises(ValueError, match="not C-contiguous"):
        _native.pack(words(0, 8)[::2], 8)
    with pytest.raises(ValueError, match=r"peer: expected shape \(22\), found \(21,\)"):
        _native.open_packed(words(0, 4), np.zeros(21, np.uint8), 44)
    with pytest.raises(ValueError, match=r"share: expected shape \(4\), found \(5,\)"):
        _native.mask_packed(words(0, 5), words(0, 4), 0, 44)
    with pytest.raises(ValueError, match=r"out: expected shape \(22\), found \(23,\)"):
        _native.pack(words(0, 4), 44, np.zeros(23, np.uint8))
    with pytest.raises(ValueError, match="party = 2"):
        _native.and_layer(2, *(words(0, 4),) * 5)
