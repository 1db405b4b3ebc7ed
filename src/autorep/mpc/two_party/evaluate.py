"""Every verb evaluated between the two servers, all draws of one kind together, whatever query or layer they belong to.

A draw is (correlation, operands), the operands this party's shares. Results are the tensors that `stored` keeps.
Flights: 4 for truncations, 1 + one a layer for linear layers, 14 for quadratics, 2 a bit for `Bits`, 2 for triples, 4
for selections, 2 for products. Each party sees uniform or pseudorandom messages only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc import verbs
from autorep.mpc.operations.linear import RingKernel
from autorep.mpc.ot.extension import Modulus, power
from autorep.mpc.ot.tools import BIT
from autorep.mpc.ring import U64, low_bits, reduce
from autorep.mpc.two_party import rounding
from autorep.mpc.two_party.account import Account
from autorep.mpc.two_party.cross import Coefficients, Cross
from autorep.mpc.two_party.stored import OwnRandomness

Draw = tuple[Any, tuple[np.ndarray, ...]]  # correlation, operands
Tensors = list[np.ndarray]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([part.reshape(-1) for part in parts])


def _split(values: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    ends = np.cumsum([part.size for part in like])[:-1]
    return np.split(values, ends)


class Evaluation:
    """One party's end. `kernels`: layer name -> its own weight share, packed."""

    def __init__(
        self, cross: Cross, kernels: dict[str, RingKernel], coefficients: Coefficients, account: Account
    ) -> None:
        self._cross, self._kernels, self._coefficients, self._account = cross, kernels, coefficients, account
        self._tools, self._party = cross.tools, cross.party

    def _wraps(
        self, label: str, own: Sequence[np.ndarray], powers: Sequence[int], ring: Modulus
    ) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """From numbers R_i below 2**k: shares of m by xor, of m and of 2w + m modulo `ring`; see `rounding`."""
        bits = [rounding.top_bits(r, k) for r, k in zip(own, powers)]
        top, second = _joined([pair[0] for pair in bits]), _joined([pair[1] for pair in bits])
        carry, carry_xor = self._tools.private_product(f"{label}/carry", second, [ring, BIT])
        m_xor = top ^ carry_xor
        m = self._tools.to_ring(f"{label}/msb", m_xor, ring)
        total = ring.reduce(ring.reduce(top) + carry)
        return _split(m_xor, own), _split(m, own), _split(total, own)

    def truncations(self, draws: Sequence[Draw]) -> list[Tensors]:
        """R and m of truncations with a wrap bit."""
        if not draws:
            return []
        own = [rounding.guarded(r, self._party, c.open_bits, c.shift) for c, (r,) in draws]
        powers = [c.open_bits - c.shift for c, _ in draws]
        ring = power(1 + max(c.wrap_bits for c, _ in draws))
        _, wraps, totals = self._wraps("truncation", own, powers, ring)
        results = []
        for (c, _), r, k, m, total in zip(draws, own, powers, wraps, totals):
            lifted = r - ((total - m) << U64(k - 1)) - rounding.guard_constant(self._party, k)
            results.append([reduce(lifted, c.bits), reduce(m, c.wrap_bits)])
        return results

    def linear(self, draws: Sequence[Draw]) -> list[Tensors]:
        """−W∗ρ: the mixed terms from the peer, the own one alone. Draws of one layer may come from several queries."""
        by_layer: dict[str, list[np.ndarray]] = {}
        for c, (rho,) in draws:
            by_layer.setdefault(c.op.name, []).append(rho)
        together = {name: np.concatenate(parts) for name, parts in by_layer.items()}
        terms = self._cross.linear(together)
        images = {}
        for name, rho in together.items():
            with self._account.part("own convolutions"):
                own = self._kernels[name](rho)
            images[name] = iter(np.split(U64(0) - own - terms[name].reshape(own.shape), len(by_layer[name])))
        return [[reduce(next(images[c.op.name]), c.op.bits)] for c, _ in draws]

    def quadratics(self, queries: Sequence[Sequence[Draw]]) -> list[list[Tensors]]:
        """P and Q for c = 1, and m·a and m·(2P − b + 2**k·a): of all layers, for each query its draws in order."""
        if not queries or not queries[0]:
            return [[] for _ in queries]
        correlations = [c for c, _ in queries[0]]
        widths = [c.op.quad_count for c in correlations]
        layers = [
            np.concatenate([_native.gather(query[i][1][0], c.op.quad_index) for query in queries])
            for i, c in enumerate(correlations)
        ]
        own = [rounding.guarded(r, self._party, c.op.open_bits, c.shift) for c, r in zip(correlations, layers)]
        powers = [c.op.open_bits - c.shift for c in correlations]
        ring = self._cross.ring
        bits, wraps, totals = self._wraps("quadratic", own, powers, ring)
        rho = [self._signed(ring, *parts) for parts in zip(own, powers, wraps, totals)]
        p, q = self._cross.quadratics(np.concatenate(rho, axis=1))
        ends = np.cumsum(widths)[:-1]
        p_layers, q_layers = np.split(p, ends, axis=1), np.split(q, ends, axis=1)
        others = self._other_case(correlations, powers, bits, p_layers)
        results = [
            [reduce(p_layer, c.op.quad_open_bits), reduce(q_layer, c.op.quad_open_bits), *other]
            for c, p_layer, q_layer, other in zip(correlations, p_layers, q_layers, others)
        ]
        return [
            [[np.split(tensor, len(queries))[number] for tensor in tensors] for tensors in results]
            for number in range(len(queries))
        ]

    def _signed(self, ring: Modulus, own: np.ndarray, k: int, m: np.ndarray, total: np.ndarray) -> np.ndarray:
        """Share of ρ for c = 1: R₀ + R₁ − 2**k·(w + m) − the guard's constant; 2w + 2m = (2w + m) + m."""
        doubled = ring.reduce(total + m).reshape(own.shape)
        constant = np.full_like(doubled, 1 << (k - 1))
        scaled = ring.times(doubled, constant)
        guard = rounding.guard_constant(self._party, k)
        base = ring.reduce(own + ring.negative(np.full_like(own, guard)))
        return ring.reduce(base + ring.negative(scaled))

    def _other_case(
        self,
        correlations: Sequence[verbs.Quadratic],
        powers: Sequence[int],
        bits: Sequence[np.ndarray],
        p: Sequence[np.ndarray],
    ) -> list[Tensors]:
        """m·a and m·(2P − b + 2**k·a) of the layers with a wrap bit."""
        wrapped = [i for i, c in enumerate(correlations) if c.wrap_bits]
        results: list[Tensors] = [[] for _ in correlations]
        if not wrapped:
            return results
        starts = np.cumsum([0, *(c.op.quad_count for c in correlations)])
        a_all, b_all = self._coefficients.a, self._coefficients.b
        a_parts, x_parts = [], []
        for i in wrapped:
            a, b = (np.broadcast_to(v[starts[i] : starts[i + 1]], p[i].shape) for v in (a_all, b_all))
            a_parts.append(np.ascontiguousarray(a))
            x_parts.append(U64(2) * p[i] - b + (a << U64(powers[i])))
        ring = power(max(correlations[i].wrap_bits for i in wrapped))
        selected = self._tools.select(
            "quadratic/wrap", _joined([bits[i] for i in wrapped]), [_joined(a_parts), _joined(x_parts)], [ring, ring]
        )
        for place, i in enumerate(wrapped):
            for values in selected:
                part = _split(values, a_parts)[place]
                results[i].append(reduce(part, correlations[i].wrap_bits).reshape(p[i].shape))
        return results

    def bits(self, draws: Sequence[Draw]) -> list[Tensors]:
        """Planes of the low bits of R₀ + R₁: an adder on the parties' own low bits, for all draws at once."""
        if not draws:
            return []
        width = max(c.width for c, _ in draws)
        own = [big_r.reshape(-1) for _, (big_r,) in draws]
        added, _ = self._tools.add("bits", _joined(own) & low_bits(width), width, carry_out=False)
        parts = [_split(place, own) for place in added]
        results = []
        for number, (c, _) in enumerate(draws):
            planes = [_native.bit_planes(np.ascontiguousarray(parts[place][number]), 1) for place in range(c.width)]
            results.append([np.concatenate(planes)])
        return results

    def triples(self, draws: Sequence[tuple[verbs.BitTriples, OwnRandomness]]) -> list[Tensors]:
        """c = a & b of bits that each party's seed gives."""
        if not draws:
            return []
        pairs = [own.triple_bits(c) for c, own in draws]
        a, b = (_unpacked(_joined([pair[i] for pair in pairs])) for i in (0, 1))
        words = _native.bit_planes(self._tools.both_bits("triples", a, b), 1).reshape(-1)
        return [[part] for part in _split(words, [pair[0] for pair in pairs])]

    def selections(self, draws: Sequence[tuple[Draw, OwnRandomness]]) -> list[Tensors]:
        """δ, δ·R and δ·m of bits δ that each party's seed gives."""
        if not draws:
            return []
        bits, big_r, wraps = [], [], []
        for (c, (r, wrap)), own in draws:
            planes = own.selecting_bits(c)
            bits.append(np.concatenate([_native.from_bit_planes(row.reshape(1, -1), c.count) for row in planes]))
            big_r.append(np.tile(r.reshape(-1), c.points))
            wraps.append(np.tile(wrap.reshape(-1), c.points))
        ring = power(max(c.bits for (c, _), _ in draws))
        wrap_ring = power(max(1, *(c.wrap_bits for (c, _), _ in draws)))
        joined = _joined(bits)
        delta = self._tools.to_ring("selection/delta", joined, ring)
        products = self._tools.select("selection", joined, [_joined(big_r), _joined(wraps)], [ring, wrap_ring])
        parts = [_split(values, bits) for values in (delta, *products)]
        results = []
        for number, ((c, _), _) in enumerate(draws):
            tensors = [reduce(part[number], c.bits) for part in parts[:2]]
            if c.wrap_bits:
                tensors.append(reduce(parts[2][number], c.wrap_bits))
            results.append(tensors)
        return results

    def products(self, draws: Sequence[Draw]) -> list[Tensors]:
        """ρ·γ, bit by bit."""
        if not draws:
            return []
        bits = max(c.bits for c, _ in draws)
        rho = [r for _, (r, _) in draws]
        gamma = [np.ascontiguousarray(np.broadcast_to(g, r.shape)) for _, (r, g) in draws]
        shares = self._tools.products("product", _joined(gamma), _joined(rho), bits)
        return [[reduce(part, c.bits)] for (c, _), part in zip(draws, _split(shares, rho))]


def _unpacked(words: np.ndarray) -> np.ndarray:
    """The bits of words, one a word."""
    return _native.from_bit_planes(words.reshape(1, -1), 64 * words.size)
