"""From a shared sign to a ReLU, or to a bit: one opened bit under a one-time bit, then everything is local.

The sign s = [t < 0] of t = T − R + c·m·2**k is shared by exclusive or, δ is a one-time bit (`verbs.Selection`).

1. Open ŝ = s xor δ, one bit an element and point. It is uniform.
2. s = ŝ + (1 − 2ŝ)·δ, so 1 − s is δ where ŝ = 1 and 1 − δ where ŝ = 0, and the same with R or m as a factor:
   relu(t) = (1 − s)·t = T·(1 − s) − (1 − s)·R + c·2**k·(1 − s)·m.

One round for all points of a batch of signs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autorep import _native
from autorep.mpc.online import Exchange
from autorep.mpc.ring import U64
from autorep.mpc.signs import SignBatch
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Selection, SelectionShares, Source


class SignSelection:
    """The selection of one batch of signs: its correlation, its round, its two steps."""

    def __init__(self, batch: SignBatch) -> None:
        self._batch = batch
        self.correlation = Selection(f"{batch.label}/select", batch.count, batch.points, batch.bits, batch.wrap_bits)
        self.round = Round(f"{batch.label}/sign", (Part(batch.points * ((batch.count + 63) // 64), 64),))

    def correlate(self, source: Source, big_r: np.ndarray, wrap: np.ndarray) -> SelectionShares:
        """Draw δ and its products, of which none is wanted where a bit is paid out."""
        if self._batch.pays == "bit":
            big_r = np.zeros_like(big_r)
        shares: SelectionShares = source.draw(self.correlation, big_r, wrap)
        return shares

    def nonnegative(self, exchange: Exchange, signs: np.ndarray, shares: SelectionShares) -> list[np.ndarray]:
        """Shares of 1 − s at every point from xor shares of its sign, as planes (points, words)."""
        opened, one = exchange.open_xor(self.round.label, signs ^ shares.planes), U64(1 - exchange.party)
        flags = [_native.from_bit_planes(row.reshape(1, -1), self._batch.count).astype(bool) for row in opened]
        return [np.where(flag, delta, one - delta) for flag, delta in zip(flags, shares.delta)]

    def relu(
        self,
        exchange: Exchange,
        signs: np.ndarray,
        truncation: tuple[np.ndarray, np.ndarray],
        shares: SelectionShares,
        points: Sequence[np.ndarray],
        lifted: np.ndarray,
        wrap_shift: int,
    ) -> list[np.ndarray]:
        """Shares of relu(t) at every point from xor shares of its sign, as planes (points, words).

        Args:
            truncation: shares of R and m.
            points, lifted, wrap_shift: as for `signs.SignProtocol.relu`.
        """
        opened = exchange.open_xor(self.round.label, signs ^ shares.planes)
        results = []
        for number, point in enumerate(points):
            negative = _native.from_bit_planes(opened[number].reshape(1, -1), self._batch.count)
            results.append(
                _native.relu_share(
                    point, lifted, negative, 0, 1 - exchange.party, None, *truncation,
                    shares.delta[number], shares.delta_r[number], shares.delta_m[number], 64, 64 - wrap_shift,
                )
            )  # fmt: skip
        return results
