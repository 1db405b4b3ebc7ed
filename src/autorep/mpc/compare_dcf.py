"""ReLU by distributed comparison functions: one key per kept element, no round of its own.

The value is t = T − R + c·m·2**k over the integers: T and c public, R and the wrap bit m known to the dealer only.
A distributed comparison function (Boyle et al. 2021) gives the two parties additive shares of β·[x < α] for a public
x and secret α, β; either key alone is pseudorandom and says nothing about them.

1. Dealer: R_w = the low n+1 bits of R, σ its top bit, α its low n bits; payload β = (1 − 2σ)·(1, R, m).
2. Online, x = the low n bits of T: (d', dR', dm') = Eval(x) + ([σ], [σR], [σm]) are shares of b, b·R, b·m with
   b = σ xor [x < α]; when bit n of T is 0 the bit sought is 1 − b, so subtract from (1, R, m).
3. relu(t) = d·t = T·d − dR + c·2**k·dm. All local.

Rounds: 0. Online: 2n AES calls per element and point. Dealer to each party: n·(16 + v) + v + ⌈n/8⌉ bytes a key,
v = ⌈(2·bits + wrap_bits)/8⌉ (654 bytes for n = 22, bits = 44, wrap_bits = 16), and [σ], [σR], [σm] to P1.
A key may be evaluated at several public points (knots), so a piecewise-linear function needs one key an element.
Exact for |t| < 2**n; nobody learns anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from autorep import _native
from autorep.mpc.ring import U64, low_bits, reduce
from autorep.mpc.shapes import SignBatch

if TYPE_CHECKING:
    from autorep.mpc.correlations import DealerTape, PartyTape
    from autorep.mpc.online import Exchange


def round_words(spec: SignBatch) -> Iterator[tuple[str, int]]:
    """Exchanges as (label, 64-bit words): none."""
    yield from ()


def items(spec: SignBatch) -> Iterator[tuple[str, str, int, int]]:
    """Correlated randomness as (label, kind, count, bits)."""
    key_bits = 8 * _native.dcf_key_bytes(spec.window, spec.bits, spec.wrap_bits)
    yield f"{spec.label}/root", "mask", 2 * spec.count, 64
    yield f"{spec.label}/keys", "keys", spec.count, key_bits
    yield f"{spec.label}/s", "share", spec.count, spec.bits
    yield f"{spec.label}/sR", "share", spec.count, spec.bits
    if spec.wrap_bits:
        yield f"{spec.label}/sm", "share", spec.count, spec.wrap_bits


def deal(tape: DealerTape, spec: SignBatch, big_r: np.ndarray, wrap: np.ndarray) -> None:
    """Step 1, at the dealer. `big_r` and `wrap` are R and m, flat."""
    window = big_r & low_bits(spec.window + 1)
    sigma, alpha = window >> U64(spec.window), window & low_bits(spec.window)
    sign = U64(1) - U64(2) * sigma
    beta = np.stack([reduce(v, b) for v, b in zip((sign, sign * big_r, sign * wrap), _rings(spec))], axis=1)
    root0, root1 = tape.own_streams(f"{spec.label}/root", (spec.count, 2))
    keys = _native.dcf_gen(alpha, beta, spec.window, spec.bits, spec.wrap_bits, root0, root1)
    tape.keys(f"{spec.label}/keys", keys)
    tape.share(f"{spec.label}/s", sigma)
    tape.share(f"{spec.label}/sR", sigma * big_r)
    if spec.wrap_bits:
        tape.share(f"{spec.label}/sm", sigma * wrap)


class Prepared:
    """A party's material for one batch of comparisons."""

    def __init__(self, tape: PartyTape, spec: SignBatch, big_r: np.ndarray, wrap: np.ndarray) -> None:
        self.spec, self.big_r, self.wrap = spec, big_r, wrap
        self.root = tape.mask(f"{spec.label}/root").reshape(-1, 2)
        self.keys = tape.keys(f"{spec.label}/keys")
        self.sigma = tape.share(f"{spec.label}/s")
        self.sigma_r = tape.share(f"{spec.label}/sR")
        self.sigma_m = tape.share(f"{spec.label}/sm") if spec.wrap_bits else np.zeros_like(self.sigma)

    def relu(
        self, exchange: Exchange, points: Sequence[np.ndarray], lifted: np.ndarray, wrap_shift: int
    ) -> list[np.ndarray]:
        """Shares of relu(t) at every point (steps 2 and 3).

        Args:
            points: T for every knot, flat.
            lifted: the public bits c.
            wrap_shift: k.
        """
        spec, one = self.spec, 1 - exchange.party
        results = []
        for point in points:
            x, flip = point & low_bits(spec.window), U64(1) ^ ((point >> U64(spec.window)) & U64(1))
            value = _native.dcf_eval(exchange.party, x, spec.window, spec.bits, spec.wrap_bits, self.root, self.keys)
            results.append(
                _native.relu_share(
                    point, lifted, flip, one, value,
                    self.big_r, self.wrap, self.sigma, self.sigma_r, self.sigma_m,
                    64, 64 - wrap_shift,
                )
            )  # fmt: skip
        return results


def _rings(spec: SignBatch) -> tuple[int, int, int]:
    return spec.bits, spec.bits, spec.wrap_bits
