"""ReLU by short comparison keys: two fifths of the bytes of `compare_dcf`, for one round of one bit an element.

The value is t = T − R + c·m·2**k as in `compare_dcf`. A key gives no products, only xor shares of one bit, and its tree
ends seven levels early: the bits of the last 128 leaves are one block.

1. Dealer: a key for the low n+1 bits of R (`_native.sign_gen`).
2. Online, both evaluate at the public T: xor shares of bit n of T − R, which is s = [t < 0].
3. One round opens s under a one-time bit, and the rest is local (`selection`).

Rounds: 1. Online: n − 6 AES calls and 1 bit sent per element and point. Dealer to each party: 16·(n − 6) + ⌈(n − 6)/8⌉
bytes a key (258 for n = 22), and [δ], [δR], [δm] of every point to P1.
A key may be evaluated at several public points (knots). Exact for |t| < 2**n; nobody learns anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc.online import Exchange
from autorep.mpc.selection import SignSelection
from autorep.mpc.signs import SignBatch, SignProtocol
from autorep.mpc.sizes import Round
from autorep.mpc.verbs import Correlation, SignKeys, SignKeyShares, Source


class ShortSigns(SignProtocol):
    """Material: R, m, the keys, and δ with its products."""

    def __init__(self, batch: SignBatch) -> None:
        super().__init__(batch)
        self._keys = SignKeys(f"{batch.label}/short", batch.count, batch.window)
        self._selection = SignSelection(batch)

    def rounds(self) -> Iterator[Round]:
        yield self._selection.round

    def correlations(self) -> Iterator[Correlation]:
        yield from [self._keys, self._selection.correlation]

    def correlate(self, source: Source, big_r: np.ndarray, wrap: np.ndarray) -> Any:
        keys = source.draw(self._keys, big_r)
        return (big_r, wrap), keys, self._selection.correlate(source, big_r, wrap)

    def relu(
        self, exchange: Exchange, material: Any, points: Sequence[np.ndarray], lifted: np.ndarray, wrap_shift: int
    ) -> list[np.ndarray]:
        truncation, keys, selection = material
        signs = self._signs(exchange, keys, points)
        return self._selection.relu(exchange, signs, truncation, selection, points, lifted, wrap_shift)

    def nonnegative(self, exchange: Exchange, material: Any, points: Sequence[np.ndarray]) -> list[np.ndarray]:
        _, keys, selection = material
        return self._selection.nonnegative(exchange, self._signs(exchange, keys, points), selection)

    def _signs(self, exchange: Exchange, keys: SignKeyShares, points: Sequence[np.ndarray]) -> np.ndarray:
        """Step 2, as planes (points, words)."""
        window = self.batch.window
        return np.stack(
            [_native.sign_eval(exchange.party, p, window, keys.root, keys.keys, keys.aes_keys) for p in points]
        )
