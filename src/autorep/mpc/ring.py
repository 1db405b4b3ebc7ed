"""Arithmetic modulo 2**bits on uint64 words."""

from __future__ import annotations

from functools import cache

import numpy as np

U64 = np.uint64


def low_bits(bits: int) -> np.uint64:
    """The mask 2**bits - 1."""
    return U64((1 << bits) - 1)


def reduce(values: np.ndarray, bits: int) -> np.ndarray:
    """`values` modulo 2**bits."""
    return values if bits == 64 else values & low_bits(bits)


@cache
def _zeros(count: int) -> np.ndarray:
    values = np.zeros(count, U64)
    values.flags.writeable = False
    return values


def zeros(count: int) -> np.ndarray:
    """`count` zeros to read only: a part of memory that all callers share."""
    return _zeros(1 << max(0, count - 1).bit_length())[:count]


def shift_left(values: np.ndarray, count: int) -> np.ndarray:
    """`values`·2**count modulo 2**64; the same array where nothing is shifted."""
    if count == 0:
        return values
    return values << U64(count) if count < 64 else np.zeros_like(values)


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of `count` ring elements of `bits` bits, packed without gaps."""
    return (count * bits + 7) // 8


def channel_view(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A per-channel vector (C,) or a full-shape array made to broadcast against (N, *shape)."""
    if values.shape == shape:
        return values
    return values.reshape((-1,) + (1,) * (len(shape) - 1))
