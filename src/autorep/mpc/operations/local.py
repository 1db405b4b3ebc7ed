"""Operations without correlations or rounds: additions, and rearrangements of values, masks and shares alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.ring import shift_left
from autorep.mpc.verbs import Source
from autorep.program import ir

Rearranged = TypeVar("Rearranged", ir.SumPool, ir.Flatten, ir.Concat, ir.Gather)


class Add(Operation[ir.Add]):
    """Shares brought to the result's fractional bits and added."""

    reads_shares = True
    passes_on = True

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        owed = [
            shift_left(mask, self.op.frac - op.frac)
            for op, mask in zip(self.sources, masks)
            if op.kind == "sum" and mask is not None
        ]
        return None, sum(owed[1:], owed[0]) if owed else None

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        shares = [shift_left(value.share(exchange.party), self.op.frac - value.op.frac) for value in inputs]
        return sum(shares[1:], shares[0])


class Rearrangement(Operation[Rearranged]):
    """One linear map, applied to a wire's public value and to its mask, or to a sum's share and to what is owed."""

    passes_on = True

    @abstractmethod
    def apply(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """The map, on (N, *shape) arrays mod 2**64."""

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        if all(mask is None for mask in masks):
            return None, None
        return None, self.apply(_whole(self.sources, masks, self.batch))

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        return self.apply([value.data for value in inputs])


def _whole(sources: Sequence[ir.Op], masks: Masks, batch: int) -> list[np.ndarray]:
    """Zeros where nothing is owed."""
    return [np.zeros((batch, *op.shape), np.uint64) if mask is None else mask for op, mask in zip(sources, masks)]


class Flatten(Rearrangement[ir.Flatten]):
    def apply(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return values[0].reshape(len(values[0]), *self.op.shape)


class Concat(Rearrangement[ir.Concat]):
    def apply(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(values, axis=1)


class Gather(Rearrangement[ir.Gather]):
    def apply(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return self.op.apply(values)


class SumPool(Rearrangement[ir.SumPool]):
    def apply(self, values: Sequence[np.ndarray]) -> np.ndarray:
        op, (planes,) = self.op, values
        if op.kernel == planes.shape[2:] and op.padding == (0, 0):
            return planes.sum(axis=(2, 3), keepdims=True, dtype=np.uint64)
        (top, left), (rows, cols) = op.padding, op.stride
        padded = np.pad(planes, ((0, 0), (0, 0), (top, top), (left, left)))
        height, width = op.shape[1:]
        total = np.zeros((len(planes), *op.shape), np.uint64)
        for i in range(op.kernel[0]):
            for j in range(op.kernel[1]):
                total += padded[:, :, i : i + rows * height : rows, j : j + cols * width : cols][:, :, :height, :width]
        return total
