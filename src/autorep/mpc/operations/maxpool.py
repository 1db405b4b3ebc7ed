"""Max pooling of a wire: a tournament in which max(a, b) = b + relu(a − b).

The difference of two wires is a wire already (public A − B, mask ρ_a − ρ_b), so a level needs no opening before its
comparison: relu by one of `comparisons`, then one opening of the winners under a fresh mask.

Rounds: ⌈log2(kernel area)⌉ (plus those of the comparison at each). Sent: `bits` bits per comparison.
Exact while two candidates differ by less than 2**window units; both servers see uniform values only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from autorep.mpc.comparisons import COMPARISONS
from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.ring import reduce
from autorep.mpc.signs import SignBatch, SignProtocol
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Correlation, Mask, Source
from autorep.program import ir


@dataclass(frozen=True)
class Level:
    """One level of the tournament: candidate columns of both halves meet, at most one more waits."""

    signs: SignProtocol
    pairs: int
    winners: Mask
    opening: Round

    def meet(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Left and right candidates."""
        return columns[: self.pairs], columns[self.pairs : 2 * self.pairs]

    def advance(self, columns: np.ndarray, winners: np.ndarray) -> np.ndarray:
        """The candidates of the next level."""
        return np.concatenate([winners, columns[2 * self.pairs :]])


class MaxPool(Operation[ir.MaxPool]):
    """Levels that reduce the kernel's candidates to one."""

    def __init__(self, op: ir.MaxPool, sources: Sequence[ir.Op], batch: int, comparison: str) -> None:
        super().__init__(op, sources, batch, comparison)
        self._levels: list[Level] = []
        candidates = op.kernel[0] * op.kernel[1]
        while candidates > 1:
            pairs, rest = divmod(candidates, 2)
            label, count = f"{op.name}/max{len(self._levels)}", pairs * self.count
            signs = COMPARISONS[comparison](SignBatch(label, count, op.window, op.bits, 0))
            opening = Round(f"{label}/open", (Part(count, op.bits),))
            self._levels.append(Level(signs, pairs, Mask(f"{label}/z", count, op.bits), opening))
            candidates = pairs + rest

    def rounds(self) -> Iterator[Round]:
        for level in self._levels:
            yield from level.signs.rounds()
            yield level.opening

    def correlations(self) -> Iterator[Correlation]:
        for level in self._levels:
            yield from level.signs.correlations()
            yield level.winners

    def comparisons(self) -> int:
        return self.count * (self.op.kernel[0] * self.op.kernel[1] - 1)

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        columns, material = self._gather(masks[0]), []
        for level in self._levels:
            left, right = level.meet(columns)
            difference = reduce(left - right, self.op.bits).reshape(-1)
            signs = level.signs.correlate(source, difference, np.zeros_like(difference))
            winners = source.draw(level.winners).reshape(left.shape)
            material.append((signs, right, winners))
            columns = level.advance(columns, winners)
        return material, columns[0].reshape(self.batch, *self.op.shape)

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        columns = self._gather(inputs[0].data)
        for level, (signs, right_mask, mask) in zip(self._levels, material):
            left, right = level.meet(columns)
            public = (left - right).reshape(-1)
            (gain,) = level.signs.relu(exchange, signs, [public], np.zeros_like(public), 0)
            winners = gain.reshape(left.shape) - right_mask + mask
            if exchange.party == 0:
                winners += right
            columns = level.advance(columns, exchange.open(level.opening.label, [(winners, self.op.bits)])[0])
        return columns[0].reshape(self.batch, *self.op.shape)

    def _gather(self, values: np.ndarray) -> np.ndarray:
        """(N, *in_shape) to (candidates, N, outputs)."""
        return np.ascontiguousarray(values.reshape(len(values), -1)[:, self._positions].transpose(1, 0, 2))

    @cached_property
    def _positions(self) -> np.ndarray:
        return self.op.candidates(self.sources[0].shape)
