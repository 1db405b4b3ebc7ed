"""Layers before a sign: their scale is free, and a binary layer on signs becomes one of small integers, exactly.

A sign does not change when its input is divided by a positive number, so every row of the weights is divided by its
largest |w|. Where all weights of a layer are then 1, −1 or 0 and it reads signs (or sums of them), its sum without
the bias is a whole number, and y + b >= 0 exactly when y + floor(b) >= 0: the bias becomes whole too, and no larger
than the sum can be. Such a layer needs no fractional bit and no margin, its ring is a dozen bits wide and its
comparisons are exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autorep.compiler.draft import Draft
from autorep.program.ir import Conv, Flatten, Gather, Linear, Op, Sign, SumPool

SAME = 1e-4  # how near to 1 the weights of a binary layer are after division


def whole_numbers(draft: Draft) -> None:
    """Divide the rows of every layer that only signs read; round it where that changes nothing. In place."""
    readers = draft.consumers()
    for op in list(draft.ops.values()):
        if not isinstance(op, Conv | Linear) or not readers[op.name]:
            continue
        if not all(isinstance(reader, Sign) for reader in readers[op.name]):
            continue
        weight, bias = (np.asarray(draft.parameter(op.name, key), np.float64) for key in ("weight", "bias"))
        largest = np.abs(weight.reshape(len(weight), -1)).max(axis=1)
        scale = 1.0 / np.where(largest > 0, largest, 1.0)
        weight = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
        bias = bias * scale.reshape(-1, *(1,) * (bias.ndim - 1))
        reach = largest_count(draft.ops, op.inputs[0])
        if reach and np.abs(weight - np.rint(weight)).max() < SAME:
            weight = np.rint(weight)
            furthest = reach * np.abs(weight).reshape(len(weight), -1).sum(axis=1)
            furthest = furthest.reshape(-1, *(1,) * (bias.ndim - 1))
            bias = np.clip(np.floor(bias), -furthest - 1, furthest)
        draft.set_parameters(op.name, weight=weight, bias=bias)


def is_whole(*arrays: np.ndarray) -> bool:
    """Whether all these numbers are whole."""
    return all(np.array_equal(values, np.rint(values)) for values in arrays)


def largest_count(ops: Mapping[str, Op], name: str) -> int:
    """The largest |value| of signs, or of sums and arrangements of them; 0 for anything else."""
    op = ops[name]
    if isinstance(op, SumPool | Flatten | Gather):
        found = [largest_count(ops, source) for source in op.inputs]
        area = op.kernel[0] * op.kernel[1] if isinstance(op, SumPool) else 1
        return area * max(found) if all(found) else 0
    return int(isinstance(op, Sign))
