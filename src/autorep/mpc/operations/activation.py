"""The mixed activation: most elements through a secret quadratic, the kept ones through a comparison; two rounds.

Opening A and the lifted value t = T − ρ, ρ = R − c·m·2**k, are those of `requantize` (k = open_bits − shift; the shift
differs between quadratics and kept elements). Everything between the openings is local:

Quadratic a·t² + b·t + c₀ with secret a, b. Offline, for both values of the public bit c, shares of P = a·ρ and
Q = a·ρ² − b·ρ (`verbs.Quadratic`); online each party computes
    zᵢ = aᵢ·T² − 2T·Pᵢ + Qᵢ + bᵢ·T + c₀ᵢ   (mod 2**quad_open_bits).
Kept elements: offset + Σ slope·relu(t − knot), by one of `comparisons`.

Opening B reveals z under a fresh mask: quadratics in a ring wider by the shift that brings them back to the wire's
fractional bits (so the shift needs no wrap bit), kept elements in the wire's ring without shift.

Rounds: 2 (and those of the comparison). Sent per element: open_bits, then quad_open_bits or bits.
Both servers see uniform values only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc.comparisons import COMPARISONS
from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.operations.requantize import open_sum, owed
from autorep.mpc.ring import U64
from autorep.mpc.signs import SignBatch
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Correlation, Mask, Quadratic, QuadraticShares, Source, Truncation
from autorep.program import ir


def _encode_signed(value: int) -> np.uint64:
    return U64(value % (1 << 64))


@dataclass
class Material:
    """Of one activation layer: r, then P, Q and z of the quadratics, keys or bits and z of the kept elements."""

    r: np.ndarray
    quadratic: QuadraticShares | None = None
    quad_mask: np.ndarray | None = None
    signs: Any = None
    kept_mask: np.ndarray | None = None


class Activation(Operation[ir.Activation]):
    """Two kinds of element side by side in both openings."""

    opens = True

    def __init__(self, op: ir.Activation, sources: Sequence[ir.Op], batch: int, comparison: str) -> None:
        super().__init__(op, sources, batch, comparison)
        name, quad, kept = op.name, batch * op.quad_count, batch * op.kept_count
        self._r = Mask(f"{name}/r", self.count, op.open_bits)
        self._quadratic = Quadratic(f"{name}/quad", quad, op)
        self._quad_mask = Mask(f"{name}/quad/z", quad, op.quad_open_bits)
        self._quad_wire = Truncation(f"{name}/quad/wire", quad, op.quad_open_bits, op.quad_shift, op.bits)
        self._kept = Truncation(f"{name}/kept", kept, op.open_bits, op.in_frac - op.kept_frac, op.bits)
        batch_of_signs = SignBatch(f"{name}/kept", kept, op.window, op.bits, self._kept.wrap_bits, len(op.knots))
        self._signs = COMPARISONS[comparison](batch_of_signs)
        self._kept_mask = Mask(f"{name}/kept/z", kept, op.bits)
        self._kept_index = np.ascontiguousarray(op.kept, np.int64)
        self._a = Round(f"{name}/a", (Part(self.count, op.open_bits),))
        parts = (Part(quad, op.quad_open_bits), Part(kept, op.bits))
        self._b = Round(f"{name}/b", tuple(part for part in parts if part.count))

    def rounds(self) -> Iterator[Round]:
        yield self._a
        if self.op.kept_count:
            yield from self._signs.rounds()
        yield self._b

    def correlations(self) -> Iterator[Correlation]:
        yield self._r
        if self.op.quad_count:
            yield from (self._quadratic, self._quad_mask, self._quad_wire)
        if self.op.kept_count:
            yield from (self._kept, *self._signs.correlations(), self._kept_mask)

    def parameters(self) -> tuple[str, ...]:
        return self.op.parameter_names if self.op.quad_count else ()

    def fixed(self) -> Mapping[str, ir.Shape]:
        channels = (self.op.shape[0],)
        return {"a": channels, "b": channels} if self.op.quad_count else {}

    def multiplications(self) -> int:
        return self.batch * 4 * self.op.quad_count + self.comparisons()

    def comparisons(self) -> int:
        return self.batch * len(self.op.knots) * self.op.kept_count

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        op, batch = self.op, self.batch
        r = source.draw(self._r, *owed(masks[0])).reshape(batch, op.size)
        rho = np.empty_like(r)
        material = Material(r)
        if op.quad_count:
            material.quadratic = source.draw(self._quadratic, r)
            material.quad_mask = source.draw(self._quad_mask, *owed(source.owed(self._quadratic)))
            wire = source.draw(self._quad_wire, material.quad_mask)[0]
            _native.scatter_shift(rho, op.quad_index, wire.reshape(batch, -1))
        if op.kept_count:
            truncation = source.draw(self._kept, _native.gather(r, self._kept_index).reshape(-1))
            material.signs = self._signs.correlate(source, *truncation)
            material.kept_mask = source.draw(self._kept_mask).reshape(batch, -1)
            _native.scatter_shift(rho, self._kept_index, material.kept_mask)
        return material, rho.reshape(batch, *op.shape)

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        op, batch = self.op, self.batch
        opened = open_sum(exchange, self._a.label, inputs[0].data.reshape(batch, op.size), material.r, op.open_bits)
        parts: list[tuple[np.ndarray, int]] = []
        places: list[tuple[np.ndarray, int]] = []
        if op.quad_count:
            parts.append((self._quadratics(own, material, opened), op.quad_open_bits))
            places.append((op.quad_index, op.quad_shift))
        if op.kept_count:
            parts.append((self._relus(exchange, material, opened), op.bits))
            places.append((self._kept_index, 0))
        wire = np.empty((batch, op.size), np.uint64)
        exchange.open_to(self._b.label, parts, wire, places)
        return wire.reshape(batch, *op.shape)

    def _quadratics(self, own: Mapping[str, Any], material: Material, opened: np.ndarray) -> np.ndarray:
        op = self.op
        assert material.quadratic is not None
        assert material.quad_mask is not None
        return _native.quadratic_share(
            opened, op.quad_index, op.size // op.shape[0], op.open_bits, self._quadratic.shift,
            *material.quadratic.p, *material.quadratic.q, own["a"], own["b"], own["c"],
            material.quad_mask.reshape(self.batch, -1),
        )  # fmt: skip

    def _relus(self, exchange: Exchange, material: Material, opened: np.ndarray) -> np.ndarray:
        op, shift = self.op, self._kept.shift
        assert material.kept_mask is not None
        public, lifted = _native.gather_lifted(opened, self._kept_index, op.open_bits, shift)
        points = [public - _encode_signed(knot) if knot else public for knot in op.knots]
        pieces = self._signs.relu(exchange, material.signs, points, lifted, op.open_bits - shift)
        total = material.kept_mask  # which is used up
        if exchange.party == 0:
            total += _encode_signed(op.offset)
        for slope, piece in zip(op.slopes, pieces):
            total += (piece if slope == 1 else _encode_signed(slope) * piece).reshape(total.shape)
        return total
