"""ReLU by a tree of AND gates on shared bits: the classical way, little material, a few rounds.

The value is t = T − R + c·m·2**k as in `compare_dcf`; here the dealer shares the bits of R_w (n+1 bits) by xor.

1. t < 0 exactly when bit n of T, bit n of R and the borrow [T_low < R_low] have odd parity.
2. Borrow: per bit g = ¬T·R and p = ¬(T xor R), both local because T is public; a tree combines neighbours,
   (g, p) = (g_hi xor p_hi·g_lo, p_hi·p_lo), with one batch of Beaver ANDs (bit triples) a level.
3. The sign s is opened under a one-time bit δ: ŝ = s xor δ. With [δ], [δR], [δm] from the dealer, s = ŝ + (1 − 2ŝ)·δ,
   and the same for s·R and s·m, so relu(t) = (1 − s)·t is local.

Rounds: ⌈log2 n⌉ + 1. Online: 2 bits per AND and 1 bit for ŝ; at most 2(n − 1) ANDs. Exact for |t| < 2**n.
Each party sees only bits masked by fresh triple bits or δ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from autorep import _native
from autorep.mpc.ring import U64, low_bits
from autorep.mpc.shapes import SignBatch

if TYPE_CHECKING:
    from autorep.mpc.correlations import DealerTape, PartyTape
    from autorep.mpc.online import Exchange


def _words(spec: SignBatch) -> int:
    return (spec.count + 63) // 64


def _levels(window: int) -> Iterator[tuple[int, int]]:
    """(pairs, ANDs) of every tree level; the lowest pair needs no propagate."""
    nodes = window
    while nodes > 1:
        pairs = nodes // 2
        yield pairs, 2 * pairs - 1
        nodes -= pairs


def round_words(spec: SignBatch) -> Iterator[tuple[str, int]]:
    """Exchanges as (label, 64-bit words each party sends); all points share the rounds."""
    words = spec.points * _words(spec)
    for number, (_, ands) in enumerate(_levels(spec.window)):
        yield f"{spec.label}/and{number}", 2 * ands * words
    yield f"{spec.label}/sign", words


def items(spec: SignBatch) -> Iterator[tuple[str, str, int, int]]:
    """Correlated randomness as (label, kind, count, bits)."""
    words = spec.points * _words(spec)
    yield f"{spec.label}/bits", "xor", (spec.window + 1) * _words(spec), 64
    for number, (_, ands) in enumerate(_levels(spec.window)):
        yield f"{spec.label}/and{number}/a", "mask", ands * words, 64
        yield f"{spec.label}/and{number}/b", "mask", ands * words, 64
        yield f"{spec.label}/and{number}/c", "xor", ands * words, 64
    yield f"{spec.label}/delta", "mask", words, 64
    yield f"{spec.label}/d", "share", spec.points * spec.count, spec.bits
    yield f"{spec.label}/dR", "share", spec.points * spec.count, spec.bits
    if spec.wrap_bits:
        yield f"{spec.label}/dm", "share", spec.points * spec.count, spec.wrap_bits


def deal(tape: DealerTape, spec: SignBatch, big_r: np.ndarray, wrap: np.ndarray) -> None:
    """The dealer's part: shared bits of R, bit triples, and the masks δ of the signs."""
    words = _words(spec)
    tape.xor(f"{spec.label}/bits", _native.bit_planes(big_r, spec.window + 1).reshape(-1))
    for number in range(len(list(_levels(spec.window)))):
        label = f"{spec.label}/and{number}"
        tape.xor(f"{label}/c", tape.xor_mask(f"{label}/a") & tape.xor_mask(f"{label}/b"))
    delta = tape.xor_mask(f"{spec.label}/delta")
    bits = np.concatenate(
        [_native.from_bit_planes(row.reshape(1, -1), spec.count) for row in delta.reshape(spec.points, words)]
    )
    tape.share(f"{spec.label}/d", bits)
    tape.share(f"{spec.label}/dR", bits * np.tile(big_r, spec.points))
    if spec.wrap_bits:
        tape.share(f"{spec.label}/dm", bits * np.tile(wrap, spec.points))


class Prepared:
    """A party's material for one batch of comparisons."""

    def __init__(self, tape: PartyTape, spec: SignBatch, big_r: np.ndarray, wrap: np.ndarray) -> None:
        self.spec, self.big_r, self.wrap = spec, big_r, wrap
        words = _words(spec)
        self.r_planes = tape.xor(f"{spec.label}/bits").reshape(spec.window + 1, words)
        self.triples = []
        for number, (_, ands) in enumerate(_levels(spec.window)):
            label = f"{spec.label}/and{number}"
            triple = (tape.mask(f"{label}/a"), tape.mask(f"{label}/b"), tape.xor(f"{label}/c"))
            self.triples.append([wire.reshape(ands, spec.points, words) for wire in triple])
        self.delta_planes = tape.mask(f"{spec.label}/delta").reshape(spec.points, words)
        shape = (spec.points, spec.count)
        self.delta = tape.share(f"{spec.label}/d").reshape(shape)
        self.delta_r = tape.share(f"{spec.label}/dR").reshape(shape)
        wraps = tape.share(f"{spec.label}/dm").reshape(shape) if spec.wrap_bits else np.zeros(shape, np.uint64)
        self.delta_m = wraps

    def relu(
        self, exchange: Exchange, points: Sequence[np.ndarray], lifted: np.ndarray, wrap_shift: int
    ) -> list[np.ndarray]:
        """Shares of relu(t) at every point; arguments as in `compare_dcf.Prepared.relu`."""
        opened_signs = self._open_signs(exchange, points)
        one = U64(1 - exchange.party)
        results = []
        for number, point in enumerate(points):
            sign = _native.from_bit_planes(opened_signs[number].reshape(1, -1), self.spec.count)
            factor = U64(1) - U64(2) * sign

            def kept(whole: np.ndarray | np.uint64, masked: np.ndarray, sign=sign, factor=factor) -> np.ndarray:
                """Share of (1 − s)·v from the shares of v and δ·v."""
                return whole - (sign * whole + factor * masked)

            d = kept(one, self.delta[number])
            d_r = kept(self.big_r, self.delta_r[number])
            d_m = kept(self.wrap, self.delta_m[number])
            results.append(point * d - d_r + ((lifted * d_m) << U64(wrap_shift)))
        return results

    def _open_signs(self, exchange: Exchange, points: Sequence[np.ndarray]) -> np.ndarray:
        """Steps 1-3: ŝ = s xor δ for every point, as planes (points, words)."""
        spec, n = self.spec, self.spec.window
        mine = ~U64(0) if exchange.party == 0 else U64(0)  # a public bit belongs to P0's share only
        t_planes = np.stack([_native.bit_planes(point & low_bits(n + 1), n + 1) for point in points], axis=1)
        r_planes = self.r_planes[:, None, :]
        generate = list(~t_planes[:n] & r_planes[:n])  # one (points, words) array per bit, least significant first
        propagate = list((~t_planes[:n] & mine) ^ r_planes[:n])
        for number, (pairs, ands) in enumerate(_levels(n)):
            odd = len(generate) % 2  # the most significant node waits when the number of nodes is odd
            hi_p = [propagate[2 * i + 1] for i in range(pairs)]
            left = hi_p + hi_p[1:]
            right = [generate[2 * i] for i in range(pairs)] + [propagate[2 * i] for i in range(1, pairs)]
            product = self._and(exchange, number, np.stack(left), np.stack(right), ands)
            new_g = [generate[2 * i + 1] ^ product[i] for i in range(pairs)]
            new_p = [propagate[0], *product[pairs:]]  # the lowest propagate is never read
            generate = new_g + (generate[-1:] if odd else [])
            propagate = new_p + (propagate[-1:] if odd else [])
        sign = (t_planes[n] & mine) ^ r_planes[n] ^ generate[0]
        return exchange.open_xor(f"{spec.label}/sign", sign ^ self.delta_planes)

    def _and(self, exchange: Exchange, level: int, x: np.ndarray, y: np.ndarray, ands: int) -> np.ndarray:
        a, b, c = self.triples[level]
        opened = exchange.open_xor(f"{self.spec.label}/and{level}", np.stack([x ^ a, y ^ b]))
        return _native.and_layer(exchange.party, opened[0], opened[1], a, b, c).reshape(ands, *x.shape[1:])
