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
Where the bit [t >= 0] alone is wanted, the payload is 1 − 2σ, v = ⌈(bits + 2)/8⌉ (220 bytes for n = 12, bits = 14).
A key may be evaluated at several public points (knots), so a piecewise-linear function needs one key an element.
Exact for |t| < 2**n; nobody learns anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc.online import Exchange
from autorep.mpc.ring import U64
from autorep.mpc.signs import SignProtocol
from autorep.mpc.sizes import Round
from autorep.mpc.verbs import BitKeys, BitKeyShares, ComparisonKeys, KeyShares, Source


class DcfSigns(SignProtocol):
    """Material: R, m and the keys."""

    def rounds(self) -> Iterator[Round]:
        yield from ()

    def correlations(self) -> Iterator[ComparisonKeys | BitKeys]:
        batch = self.batch
        if batch.pays == "bit":
            yield BitKeys(f"{batch.label}/dcf", batch.count, batch.window, batch.bits)
        else:
            yield ComparisonKeys(f"{batch.label}/dcf", batch.count, batch.window, batch.bits, batch.wrap_bits)

    def correlate(self, source: Source, big_r: np.ndarray, wrap: np.ndarray) -> Any:
        (keys,) = self.correlations()
        if isinstance(keys, BitKeys):
            return source.draw(keys, big_r)
        return big_r, wrap, source.draw(keys, big_r, wrap)

    def relu(
        self, exchange: Exchange, material: Any, points: Sequence[np.ndarray], lifted: np.ndarray, wrap_shift: int
    ) -> list[np.ndarray]:
        n, bits, wrap_bits, one = self.batch.window, self.batch.bits, self.batch.wrap_bits, 1 - exchange.party
        keys: KeyShares
        big_r, wrap, keys = material
        results = []
        for point in points:
            value = _native.dcf_eval(exchange.party, point, n, bits, wrap_bits, keys.root, keys.keys, keys.aes_keys)
            results.append(
                _native.relu_share(
                    point, lifted, point, n, one, value,
                    big_r, wrap, keys.sigma, keys.sigma_r, keys.sigma_m,
                    64, 64 - wrap_shift,
                )
            )  # fmt: skip
        return results

    def nonnegative(self, exchange: Exchange, material: Any, points: Sequence[np.ndarray]) -> list[np.ndarray]:
        n, bits, one = self.batch.window, self.batch.bits, U64(1 - exchange.party)
        keys: BitKeyShares = material
        results = []
        for point in points:
            flip = U64(1) ^ ((point >> U64(n)) & U64(1))
            paid = _native.dcf_eval(exchange.party, point, n, 1, bits, keys.root, keys.keys, keys.aes_keys)[:, 2]
            bit = paid + keys.sigma
            results.append(np.where(flip.astype(bool), one - bit, bit))
        return results
