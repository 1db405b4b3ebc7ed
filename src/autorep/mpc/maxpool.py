"""Max pooling of a wire: a tournament in which max(a, b) = b + relu(a − b).

The difference of two wires is a wire already (public A − B, mask ρ_a − ρ_b), so a level needs no opening before its
comparison: relu by `compare_dcf` or `compare_bits`, then one opening of the winners under a fresh mask.

Rounds: ⌈log2(kernel area)⌉ (plus those of `compare_bits`). Sent: `bits` bits per comparison.
Exact while two candidates differ by less than 2**window units; both servers see uniform values only.
"""

from __future__ import annotations

import numpy as np

from autorep.mpc.correlations import DealerTape, PartyTape
from autorep.mpc.inventory import COMPARISONS, ComparisonName
from autorep.mpc.online import Exchange
from autorep.mpc.ring import reduce
from autorep.mpc.shapes import pool_candidates, tournament
from autorep.program import ir


def _gather(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """(N, *in_shape) to (candidates, N, outputs)."""
    return np.ascontiguousarray(values.reshape(len(values), -1)[:, positions].transpose(1, 0, 2))


def _meet(columns: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Left and right candidates of a level."""
    return columns[:pairs], columns[pairs : 2 * pairs]


def deal(
    tape: DealerTape,
    op: ir.MaxPool,
    in_shape: ir.Shape,
    batch: int,
    comparison: ComparisonName,
    rho: np.ndarray,
) -> np.ndarray:
    """The dealer's part; returns the wire's mask."""
    columns = _gather(rho, pool_candidates(op, in_shape))
    for level in tournament(op, batch):
        left, right = _meet(columns, level.pairs)
        difference = reduce(left - right, op.bits).reshape(-1)
        COMPARISONS[comparison].deal(tape, level.comparison, difference, np.zeros_like(difference))
        winners = tape.mask(f"{level.comparison.label}/z").reshape(left.shape)
        columns = np.concatenate([winners, columns[2 * level.pairs :]])
    return columns[0].reshape(batch, *op.shape)


class Prepared:
    """A party's material for one max pool."""

    def __init__(
        self,
        tape: PartyTape,
        op: ir.MaxPool,
        in_shape: ir.Shape,
        batch: int,
        comparison: ComparisonName,
        rho: np.ndarray,
    ) -> None:
        self.op, self.positions = op, pool_candidates(op, in_shape)
        self.levels = []
        columns = _gather(rho, self.positions)
        for level in tournament(op, batch):
            left, right = _meet(columns, level.pairs)
            difference = (left - right).reshape(-1)
            material = COMPARISONS[comparison].Prepared(tape, level.comparison, difference, np.zeros_like(difference))
            winners = tape.mask(f"{level.comparison.label}/z").reshape(left.shape)
            self.levels.append((level, material, right, winners))
            columns = np.concatenate([winners, columns[2 * level.pairs :]])
        self.rho = columns[0].reshape(batch, *op.shape)

    def run(self, exchange: Exchange, opened: np.ndarray) -> np.ndarray:
        """The wire's public value."""
        op, columns = self.op, _gather(opened, self.positions)
        for level, material, right_mask, mask in self.levels:
            left, right = _meet(columns, level.pairs)
            public = (left - right).reshape(-1)
            (gain,) = material.relu(exchange, [public], np.zeros_like(public), 0)
            winners = gain.reshape(left.shape) - right_mask + mask
            if exchange.party == 0:
                winners += right
            opened_winners = exchange.open(f"{level.comparison.label}/open", [(winners, op.bits)])[0]
            columns = np.concatenate([opened_winners, columns[2 * level.pairs :]])
        return columns[0].reshape(len(opened), *op.shape)


def sum_pool(op: ir.SumPool, values: np.ndarray) -> np.ndarray:
    """Window sums of (N, C, H, W) modulo 2**64: local, on opened values, masks and shares alike."""
    if op.kernel == values.shape[2:] and op.padding == (0, 0):
        return values.sum(axis=(2, 3), keepdims=True, dtype=np.uint64)
    (top, left), (rows, cols) = op.padding, op.stride
    padded = np.pad(values, ((0, 0), (0, 0), (top, top), (left, left)))
    height, width = op.shape[1:]
    total = np.zeros((len(values), *op.shape), np.uint64)
    for i in range(op.kernel[0]):
        for j in range(op.kernel[1]):
            total += padded[:, :, i : i + rows * height : rows, j : j + cols * width : cols][:, :, :height, :width]
    return total
