"""Sizes that inventory, dealer and party share: batches of comparisons, and the tournament of a max pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autorep.program import ir


@dataclass(frozen=True)
class SignBatch:
    """`count` signs of values t = T − R, T public and R shared, at each of `points` public offsets.

    Attributes:
        window: n; exact for |t| < 2**n.
        bits: ring of the shares that come out.
        wrap_bits: ring of the wrap bit's share; 0 when no wrap bit enters.
        points: offsets (knots) at which the same value is compared.
    """

    label: str
    count: int
    window: int
    bits: int
    wrap_bits: int
    points: int = 1


@dataclass(frozen=True)
class TournamentLevel:
    """One level of a max pool: candidate columns `left` and `right` meet, `rest` (at most one) waits.

    `comparison.count` is batch·(pairs of columns)·(outputs of one image).
    """

    comparison: SignBatch
    pairs: int
    rest: int


def tournament(op: ir.MaxPool, batch: int) -> Iterator[TournamentLevel]:
    """Levels that reduce the kernel's candidates to one: ceil(log2(candidates))."""
    candidates, number = op.kernel[0] * op.kernel[1], 0
    while candidates > 1:
        pairs, rest = divmod(candidates, 2)
        spec = SignBatch(f"{op.name}/max{number}", batch * pairs * op.size, op.window, op.bits, 0)
        yield TournamentLevel(spec, pairs, rest)
        candidates, number = pairs + rest, number + 1


def pool_candidates(op: ir.MaxPool, in_shape: tuple[int, ...]) -> np.ndarray:
    """Flat input position of every candidate: (kernel area, outputs of one image).

    A position in the padding is replaced by the nearest valid position of its window, which changes no maximum.
    """
    channels, height, width = in_shape
    _, out_height, out_width = op.shape
    rows = np.arange(out_height)[:, None] * op.stride[0] - op.padding[0] + np.arange(op.kernel[0])[None]
    cols = np.arange(out_width)[:, None] * op.stride[1] - op.padding[1] + np.arange(op.kernel[1])[None]
    rows, cols = rows.clip(0, height - 1), cols.clip(0, width - 1)
    plane = rows[:, None, :, None] * width + cols[None, :, None, :]  # (out row, out column, kernel row, kernel column)
    plane = plane.transpose(2, 3, 0, 1).reshape(op.kernel[0] * op.kernel[1], 1, -1)
    positions = plane + (np.arange(channels) * height * width)[None, :, None]
    return positions.reshape(plane.shape[0], -1)
