"""Room: how far every value of a Program may go, and how much of that an image takes.

What is opened or compared lies in a ring or a window of so many bits. A value beyond it wraps, and from there on fixed
point and private inference compute something else than float does: the image is *lost*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autorep.program.floating import run_ops
from autorep.program.ir import Activation, MaxPool, Op, Program, Requantize, Sign
from autorep.program.windows import Convolve, convolution


@dataclass(frozen=True, eq=False)
class Room:
    """One bound of one operation.

    Attributes:
        read: the operation whose result is bounded.
        limit: |y| below which every result is right.
        by: "ring" (the whole value would wrap) or "window" (a kept comparison would be wrong).
        kept: flat positions that are bounded; None is all.
    """

    read: str
    limit: float
    by: Literal["ring", "window"]
    kept: np.ndarray | None = None


def rooms(op: Op, source: Op | None, last: bool) -> list[Room]:
    """The bounds of one operation that reads `source` first; none where nothing is opened or compared."""
    if isinstance(op, Activation):
        found = [Room(op.inputs[0], 2.0 ** (op.open_bits - 2 - op.in_frac), "ring")]
        if op.kept_count:
            reach = 2.0 ** (op.window - op.kept_frac) - max(abs(k) for k in op.knots) * 2.0**-op.kept_frac
            found.append(Room(op.inputs[0], reach, "window", op.kept))
        return found
    if isinstance(op, Sign):
        return [Room(op.inputs[0], 2.0 ** (op.window - op.kept_frac), "window")]
    if isinstance(op, Requantize):
        assert source is not None
        power = op.bits - 1 - op.frac if op.one_round else op.open_bits - 2 - source.frac
        return [Room(op.inputs[0], 2.0**power, "ring")]
    if isinstance(op, MaxPool):
        return [Room(op.inputs[0], 2.0 ** (op.window - op.frac - 1), "window")]
    return [Room(op.name, 2.0 ** (op.bits - 1 - op.frac), "ring")] if last else []


def room_taken(program: Program, images: np.ndarray, convolve: Convolve = convolution) -> np.ndarray:
    """Of every image (N, ...), the largest share of its room that any value takes, in float; above 1 it is lost.

    Infinite where a value is not finite. `convolve` may be a faster convolution than this package's own.
    """
    bounds = _by_operation(program.ops)
    taken = np.zeros(len(images))

    def observe(op: Op, value: np.ndarray) -> None:
        flat = value.reshape(len(value), -1)
        for room in bounds.get(op.name, ()):
            bounded = flat if room.kept is None else flat[:, room.kept]
            largest = np.maximum(bounded.max(axis=1), -bounded.min(axis=1)).astype(np.float64)
            np.maximum(taken, np.nan_to_num(largest / room.limit, nan=np.inf), out=taken)

    with np.errstate(over="ignore", invalid="ignore"):
        run_ops(program.ops, program.parameters, images, observe, np.float32, convolve)
    return taken


def _by_operation(ops: Sequence[Op]) -> dict[str, list[Room]]:
    """Bounds by the operation whose result they bound."""
    by_name = {op.name: op for op in ops}
    bounds: dict[str, list[Room]] = {}
    for op in ops:
        for room in rooms(op, by_name[op.inputs[0]] if op.inputs else None, op is ops[-1]):
            bounds.setdefault(room.read, []).append(room)
    return bounds
