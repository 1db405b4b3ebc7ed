"""A flag for the client alone: 1 where the sum of squares of a wire x is at most a public bound, else 0.

1. Shifted right, the wire is X' = X >> s under ρ' = ρ >> s, modulo 2**q, q = its bits − s; local (`verbs.Truncation`).
2. Q = Σ x'²: with x' = X' − ρ', Qᵢ = Σ ([i=0]·X'² − 2·X'·ρ'ᵢ + [ρ'²]ᵢ), local (`verbs.Product`).
3. Q is opened under a uniform mask r modulo 2**q: one element.
4. [0 ≤ Q ≤ bound] = [bound − Q ≥ 0] − [−1 − Q ≥ 0], and [t ≥ 0] = relu(t + 1) − relu(t): one comparison of −r at four
   public points, by one of `comparisons`. Its shares are the answer; nothing is opened.

Rounds: 1 (plus those of the comparison). Sent: q bits an image. Q is read as a signed number of q bits: far beyond, it
wraps, and a random one passes with probability bound / 2**q.
The servers see uniform values; the client sees the flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autorep.mpc.comparisons import COMPARISONS
from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.ring import U64, reduce
from autorep.mpc.signs import SignBatch
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Correlation, Mask, Product, Source, Truncation
from autorep.program import ir


class WithinBound(Operation[ir.WithinBound]):
    """Material: ρ', ρ'² and r, and what the comparison needs."""

    def __init__(self, op: ir.WithinBound, sources: Sequence[ir.Op], batch: int, comparison: str) -> None:
        super().__init__(op, sources, batch, comparison)
        (wire,) = sources
        self._wire, self._bits, elements = wire, wire.bits - op.shift, batch * wire.size
        self._truncation = Truncation(f"{op.name}/wire", elements, wire.bits, op.shift, self._bits)
        self._squares = Product(f"{op.name}/squares", elements, self._bits)
        self._r = Mask(f"{op.name}/r", batch, self._bits)
        flag = SignBatch(f"{op.name}/flag", batch, self._bits - 1, op.bits - op.frac, 0, points=4)
        self._signs = COMPARISONS[comparison](flag)
        self._opening = Round(f"{op.name}/open", (Part(batch, self._bits),))

    def rounds(self) -> Iterator[Round]:
        yield self._opening
        yield from self._signs.rounds()

    def correlations(self) -> Iterator[Correlation]:
        yield from (self._truncation, self._squares, self._r, *self._signs.correlations())

    def multiplications(self) -> int:
        return 2 * self.batch * self._wire.size

    def comparisons(self) -> int:
        return 4 * self.batch

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        rho, _ = source.draw(self._truncation, reduce(masks[0].reshape(-1), self._wire.bits))
        squares = source.draw(self._squares, rho, rho)
        r = source.draw(self._r)
        minus_r = reduce(U64(0) - r, self._bits)
        return (rho, squares, r, self._signs.correlate(source, minus_r, np.zeros_like(r))), None

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        rho, squares, r, signs = material
        x = inputs[0].data.reshape(-1) >> U64(self.op.shift)
        share = squares - U64(2) * x * rho
        if exchange.party == 0:
            share += x * x
        total = share.reshape(self.batch, -1).sum(axis=1, dtype=np.uint64)
        (opened,) = exchange.open(self._opening.label, [(total + r, self._bits)])
        points = [U64(offset % (1 << 64)) - opened for offset in (self.op.bound + 1, self.op.bound, 0, -1)]
        above, at, below, under = self._signs.relu(exchange, signs, points, np.zeros_like(opened), 0)
        return ((above - at - below + under) << U64(self.op.frac)).reshape(self.batch, 1)
