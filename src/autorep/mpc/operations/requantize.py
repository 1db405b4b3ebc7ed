"""From a shared sum to a wire: opening under a mask, with the shift to fewer fractional bits folded in.

y is shared, |y| < 2**(L−2); r is uniform mod 2**L, shared, known to neither party. P0 adds 2**(L−2).

1. Open ŷ = y + 2**(L−2) + r mod 2**L.
2. T = (ŷ >> s) − 2**(L−2−s), c = 1 − msb(ŷ) (public), and (R, m) a truncation of r, for a dealer R = r >> s and
   m = msb(r): t = T − R + c·m·2**(L−s) over the integers; t − ⌊y / 2**s⌋ is 0 or 1, 1 with probability
   frac(y / 2**s). There is no other error: offset value and r wrap only when m = 1 and the sum's top bit is 0.
3. One round: modulo 2**(L−s) the term in c·m vanishes, so when the wire needs no more bits than that, it is (T, R).
   Two rounds: otherwise each party has a share of t and opens it under a fresh mask z.

Rounds 1 or 2. Sent per element: L bits, then `bits`.
Both servers see ŷ and the second opening, both uniform. The stochastic rounding bit is part of what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.ring import U64, reduce
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Correlation, Mask, Source, Truncation
from autorep.program import ir


def open_sum(exchange: Exchange, label: str, share: np.ndarray, mask: np.ndarray, bits: int) -> np.ndarray:
    """Step 1: ŷ, known to both parties; the mask is used up."""
    return exchange.open_masked(label, share, mask, 1 << (bits - 2) if exchange.party == 0 else 0, bits)


def owed(debt: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """What an opening's mask is drawn with."""
    return () if debt is None else (debt.reshape(-1),)


def lift(opened: np.ndarray, bits: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """T and c of step 2."""
    lifted = U64(1) - (opened >> U64(bits - 1))
    return (opened >> U64(shift)) - U64(1 << (bits - 2 - shift)), lifted


class Requantize(Operation[ir.Requantize]):
    """Material: r, R, m and z (the last two in the second form only)."""

    opens = True

    def __init__(self, op: ir.Requantize, sources: Sequence[ir.Op], batch: int, comparison: str) -> None:
        super().__init__(op, sources, batch, comparison)
        self._r = Mask(f"{op.name}/r", self.count, op.open_bits)
        self._truncation = Truncation(op.name, self.count, op.open_bits, op.shift, op.bits)
        self._z = Mask(f"{op.name}/z", self.count, op.bits)
        self._a = Round(f"{op.name}/a", (Part(self.count, op.open_bits),))
        self._b = Round(f"{op.name}/b", (Part(self.count, op.bits),))

    def rounds(self) -> Iterator[Round]:
        yield from [self._a] if self.op.one_round else [self._a, self._b]

    def correlations(self) -> Iterator[Correlation]:
        yield from [self._r, self._truncation] if self.op.one_round else [self._r, self._truncation, self._z]

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        shape = (self.batch, *self.op.shape)
        r = source.draw(self._r, *owed(masks[0]))
        big_r, wrap = source.draw(self._truncation, r)
        if self.op.one_round:
            return r.reshape(shape), reduce(big_r, self.op.bits).reshape(shape)
        z = source.draw(self._z).reshape(shape)
        return (r.reshape(shape), big_r.reshape(shape), wrap.reshape(shape), z), z

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        op = self.op
        r, *rest = [material] if op.one_round else material
        opened = open_sum(exchange, self._a.label, inputs[0].data, r, op.open_bits)
        public, lifted = lift(opened, op.open_bits, op.shift)
        if op.one_round:
            return reduce(public, op.bits)
        big_r, wrap, z = rest
        value = (lifted * wrap << U64(op.open_bits - op.shift)) - big_r + z
        if exchange.party == 0:
            value += public
        return exchange.open(self._b.label, [(value, op.bits)])[0]
