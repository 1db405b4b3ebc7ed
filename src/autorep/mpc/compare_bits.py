"""ReLU by a tree of AND gates on shared bits: the classical way, little material, a few rounds.

The value is t = T − R + c·m·2**k as in `compare_dcf`; here the bits of R_w (n+1 bits) are shared by xor.

1. t < 0 exactly when bit n of T, bit n of R and the borrow [T_low < R_low] have odd parity.
2. Borrow: per bit g = ¬T·R and p = ¬(T xor R), both local because T is public; a tree combines neighbours,
   (g, p) = (g_hi xor p_hi·g_lo, p_hi·p_lo), with one batch of Beaver ANDs (bit triples) a level.
3. One round opens the sign s = [t < 0] under a one-time bit, and the rest is local (`selection`).

Rounds: ⌈log2 n⌉ + 1. Online: 2 bits per AND and 1 bit for ŝ; at most 2(n − 1) ANDs. Exact for |t| < 2**n.
Each party sees only bits masked by fresh triple bits or δ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc.online import Exchange
from autorep.mpc.ring import U64, low_bits
from autorep.mpc.selection import SignSelection
from autorep.mpc.signs import SignBatch, SignProtocol
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Bits, BitTriples, Correlation, Source


def _levels(window: int) -> Iterator[tuple[int, int]]:
    """(pairs, ANDs) of every tree level; the lowest pair needs no propagate."""
    nodes = window
    while nodes > 1:
        pairs = nodes // 2
        yield pairs, 2 * pairs - 1
        nodes -= pairs


class BitSigns(SignProtocol):
    """Material: R, m, the bits of R, a triple per level, and δ with its products."""

    def __init__(self, batch: SignBatch) -> None:
        super().__init__(batch)
        self._words = (batch.count + 63) // 64
        self._bits = Bits(f"{batch.label}/bits", batch.count, batch.window + 1)
        self._triples = [
            BitTriples(f"{batch.label}/and{number}", ands * batch.points * self._words)
            for number, (_, ands) in enumerate(_levels(batch.window))
        ]
        self._selection = SignSelection(batch)

    def rounds(self) -> Iterator[Round]:
        for triples in self._triples:
            yield Round(triples.label, (Part(2 * triples.count, 64),))
        yield self._selection.round

    def correlations(self) -> Iterator[Correlation]:
        yield from [self._bits, *self._triples, self._selection.correlation]

    def correlate(self, source: Source, big_r: np.ndarray, wrap: np.ndarray) -> Any:
        planes = source.draw(self._bits, big_r)
        triples = [source.draw(triples) for triples in self._triples]
        return (big_r, wrap), planes, triples, self._selection.correlate(source, big_r, wrap)

    def relu(
        self, exchange: Exchange, material: Any, points: Sequence[np.ndarray], lifted: np.ndarray, wrap_shift: int
    ) -> list[np.ndarray]:
        truncation, planes, triples, selection = material
        signs = self._signs(exchange, planes, triples, points)
        return self._selection.relu(exchange, signs, truncation, selection, points, lifted, wrap_shift)

    def nonnegative(self, exchange: Exchange, material: Any, points: Sequence[np.ndarray]) -> list[np.ndarray]:
        _, planes, triples, selection = material
        return self._selection.nonnegative(exchange, self._signs(exchange, planes, triples, points), selection)

    def _signs(
        self, exchange: Exchange, planes: np.ndarray, triples: Sequence[Any], points: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Steps 1 and 2: xor shares of s for every point, as planes (points, words)."""
        n = self.batch.window
        mine = ~U64(0) if exchange.party == 0 else U64(0)  # a public bit belongs to P0's share only
        t_planes = np.stack([_native.bit_planes(point & low_bits(n + 1), n + 1) for point in points], axis=1)
        r_planes = planes[:, None, :]
        generate = list(~t_planes[:n] & r_planes[:n])  # one (points, words) array per bit, least significant first
        propagate = list((~t_planes[:n] & mine) ^ r_planes[:n])
        for number, (pairs, _) in enumerate(_levels(n)):
            odd = len(generate) % 2  # the most significant node waits when the number of nodes is odd
            hi_p = [propagate[2 * i + 1] for i in range(pairs)]
            left = hi_p + hi_p[1:]
            right = [generate[2 * i] for i in range(pairs)] + [propagate[2 * i] for i in range(1, pairs)]
            product = self._and(exchange, number, triples[number], np.stack(left), np.stack(right))
            new_g = [generate[2 * i + 1] ^ product[i] for i in range(pairs)]
            new_p = [propagate[0], *product[pairs:]]  # the lowest propagate is never read
            generate = new_g + (generate[-1:] if odd else [])
            propagate = new_p + (propagate[-1:] if odd else [])
        return (t_planes[n] & mine) ^ r_planes[n] ^ generate[0]

    def _and(self, exchange: Exchange, level: int, triple: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b, c = (words.reshape(x.shape) for words in triple)
        opened = exchange.open_xor(self._triples[level].label, np.stack([x ^ a, y ^ b]))
        return _native.and_layer(exchange.party, opened[0], opened[1], a, b, c).reshape(x.shape)
