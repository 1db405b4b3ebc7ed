"""From a shared sum to a wire: opening under a mask, with the shift to fewer fractional bits folded in.

y is shared, |y| < 2**(L−2); r is uniform mod 2**L, shared, known to the dealer. P0 adds 2**(L−2).

1. Open ŷ = y + 2**(L−2) + r mod 2**L.
2. T = (ŷ >> s) − 2**(L−2−s), R = r >> s, c = 1 − msb(ŷ) (public), m = msb(r):
   t = T − R + c·m·2**(L−s) over the integers; t − ⌊y / 2**s⌋ is 0 or 1, 1 with probability frac(y / 2**s).
   There is no other error: the sum of an offset value and r wraps only when m = 1 and the result's top bit is 0.
3. One round: modulo 2**(L−s) the term in c·m vanishes, so when the wire needs no more bits than that, it is (T, R).
   Two rounds: otherwise each party has a share of t and opens it under a fresh mask z.

Rounds 1 or 2. Sent per element: L bits, then `bits`. Dealer to P1: [R], and [m] for the second form.
Both servers see ŷ and the second opening, both uniform. The stochastic rounding bit is part of what is computed.
"""

from __future__ import annotations

import numpy as np

from autorep.mpc.correlations import DealerTape, PartyTape
from autorep.mpc.inventory import wrap_bits
from autorep.mpc.online import Exchange
from autorep.mpc.ring import U64, reduce
from autorep.program import ir


def open_sum(exchange: Exchange, label: str, share: np.ndarray, mask: np.ndarray, bits: int) -> np.ndarray:
    """Step 1: ŷ, known to both parties."""
    masked = share + mask
    if exchange.party == 0:
        masked += U64(1 << (bits - 2))
    return exchange.open(label, [(masked, bits)])[0]


def lift(opened: np.ndarray, bits: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """T and c of step 2."""
    lifted = U64(1) - (opened >> U64(bits - 1))
    return (opened >> U64(shift)) - U64(1 << (bits - 2 - shift)), lifted


def deal(tape: DealerTape, op: ir.Requantize, batch: int) -> np.ndarray:
    """The dealer's part; returns the wire's mask."""
    r = tape.mask(f"{op.name}/r")
    big_r = r >> U64(op.shift)
    tape.share(f"{op.name}/R", big_r)
    if not op.one_round:
        if wrap_bits(op.bits, op.open_bits, op.shift):
            tape.share(f"{op.name}/m", r >> U64(op.open_bits - 1))
        big_r = tape.mask(f"{op.name}/z")
    return reduce(big_r, op.bits).reshape(batch, *op.shape)


class Prepared:
    """A party's material for one requantisation."""

    def __init__(self, tape: PartyTape, op: ir.Requantize, batch: int) -> None:
        shape = (batch, *op.shape)
        self.op = op
        self.r = tape.mask(f"{op.name}/r").reshape(shape)
        self.big_r = tape.share(f"{op.name}/R").reshape(shape)
        self.rho = self.big_r
        if not op.one_round:
            wrap = wrap_bits(op.bits, op.open_bits, op.shift)
            self.wrap = tape.share(f"{op.name}/m").reshape(shape) if wrap else np.zeros(shape, np.uint64)
            self.rho = tape.mask(f"{op.name}/z").reshape(shape)

    def run(self, exchange: Exchange, share: np.ndarray) -> np.ndarray:
        """The wire's public value."""
        op = self.op
        opened = open_sum(exchange, f"{op.name}/a", share, self.r, op.open_bits)
        public, lifted = lift(opened, op.open_bits, op.shift)
        if op.one_round:
            return reduce(public, op.bits)
        value = (lifted * self.wrap << U64(op.open_bits - op.shift)) - self.big_r + self.rho
        if exchange.party == 0:
            value += public
        return exchange.open(f"{op.name}/b", [(value, op.bits)])[0]
