"""The sign of a shared sum, 1 or −1: the activation of a binary network.

1. Open ŷ = y + 2**(L−2) + r mod 2**L as `requantize` does; T − R is y with fewer fractional bits, modulo 2**(n+1), so
   that no wrap bit is needed.
2. Shares of d = [T − R >= 0] mod 2**bits, by `compare_dcf` (its key pays out this bit alone) or `compare_bits`.
3. Open 2d − 1 under a fresh mask z; the result is a wire.

Rounds: 2 (plus those of `compare_bits`). Sent per element: L bits, then `bits`. Both servers see uniform values only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autorep.mpc.comparisons import COMPARISONS
from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.operations.requantize import lift, open_sum, owed
from autorep.mpc.ring import U64
from autorep.mpc.signs import SignBatch
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Correlation, Mask, Source, Truncation
from autorep.program import ir


class Sign(Operation[ir.Sign]):
    """Material: r, keys or bits, and z."""

    opens = True

    def __init__(self, op: ir.Sign, sources: Sequence[ir.Op], batch: int, comparison: str) -> None:
        super().__init__(op, sources, batch, comparison)
        name, count = op.name, self.count
        self._r = Mask(f"{name}/r", count, op.open_bits)
        self._truncation = Truncation(name, count, op.open_bits, op.in_frac - op.kept_frac, op.window + 1)
        self._signs = COMPARISONS[comparison](SignBatch(name, count, op.window, op.bits, 0, pays="bit"))
        self._z = Mask(f"{name}/z", count, op.bits)
        self._a = Round(f"{name}/a", (Part(count, op.open_bits),))
        self._b = Round(f"{name}/b", (Part(count, op.bits),))

    def rounds(self) -> Iterator[Round]:
        yield self._a
        yield from self._signs.rounds()
        yield self._b

    def correlations(self) -> Iterator[Correlation]:
        yield from (self._r, self._truncation, *self._signs.correlations(), self._z)

    def comparisons(self) -> int:
        return self.count

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        r = source.draw(self._r, *owed(masks[0]))
        big_r, wrap = source.draw(self._truncation, r)
        signs = self._signs.correlate(source, big_r, wrap)
        z = source.draw(self._z)
        return (r, signs, z), z.reshape(self.batch, *self.op.shape)

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        op = self.op
        r, signs, z = material
        opened = open_sum(exchange, self._a.label, inputs[0].data.reshape(-1), r, op.open_bits)
        public, _ = lift(opened, op.open_bits, self._truncation.shift)
        (bit,) = self._signs.nonnegative(exchange, signs, [public])
        value = (U64(2) * bit - U64(1 - exchange.party)) << U64(op.frac)
        return exchange.open(self._b.label, [(value + z, op.bits)])[0].reshape(self.batch, *op.shape)
