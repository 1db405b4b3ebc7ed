"""The mixed activation: most elements through a secret quadratic, the kept ones through a comparison; two rounds.

Opening A and the lifted value t = T − ρ, ρ = R − c·m·2**k, are those of `requantize` (k = open_bits − shift; the shift
differs between quadratics and kept elements). Everything between the openings is local:

Quadratic a·t² + b·t + c₀ with secret a, b. Once per model  = a + α and B̂ = b + β are opened. The dealer shares
R, αR, R², βR − αR², and for the case c = 1 also m, αm, Rm, α(2Rm − m·2**k) − βm. Offline, each party forms, for both
values of c, its shares of P = a·ρ and Q = a·ρ² − b·ρ; online it computes
    zᵢ = aᵢ·T² − 2T·Pᵢ + Qᵢ + bᵢ·T + c₀ᵢ   (mod 2**quad_open_bits).
Kept elements: offset + Σ slope·relu(t − knot), by `compare_dcf` or `compare_bits`.

Opening B reveals z under a fresh mask: quadratics in a ring wider by the shift that brings them back to the wire's
fractional bits (so the shift needs no wrap bit), kept elements in the wire's ring without shift.

Rounds: 2 (and those of `compare_bits` where chosen). Sent per element: open_bits, then quad_open_bits or bits.
Dealer to P1 per quadratic: 4·quad_open_bits + 4·(quad_open_bits − k) + bits bits. Both servers see uniform values only.
"""

from __future__ import annotations

import numpy as np

from autorep import _native
from autorep.mpc.correlations import DealerTape, PartyTape
from autorep.mpc.inventory import COMPARISONS, ComparisonName, comparison_of, wrap_bits
from autorep.mpc.online import Exchange
from autorep.mpc.requantize import lift, open_sum
from autorep.mpc.ring import U64, reduce
from autorep.program import ir


def _channels(op: ir.Activation, index: np.ndarray) -> np.ndarray:
    return index // (op.size // op.shape[0])


def _encode_signed(value: int) -> np.uint64:
    return U64(value % (1 << 64))


def deal(
    tape: DealerTape,
    op: ir.Activation,
    batch: int,
    comparison: ComparisonName,
    coefficient_masks: tuple[np.ndarray, np.ndarray] | None,
) -> np.ndarray:
    """The dealer's part; returns the wire's mask. `coefficient_masks` are α and β per channel."""
    r = tape.mask(f"{op.name}/r").reshape(batch, op.size)
    rho = np.empty_like(r)
    if coefficient_masks is not None and op.quad_count:
        index = op.quad_index
        rho[:, index] = _deal_quadratics(tape, op, r[:, index], *(v[_channels(op, index)] for v in coefficient_masks))
    if op.kept_count:
        spec = comparison_of(op, batch)
        kept = np.ascontiguousarray(r[:, op.kept]).reshape(-1)
        big_r, wrap = kept >> U64(op.in_frac - op.kept_frac), kept >> U64(op.open_bits - 1)
        tape.share(f"{spec.label}/R", big_r)
        if spec.wrap_bits:
            tape.share(f"{spec.label}/m", wrap)
        COMPARISONS[comparison].deal(tape, spec, big_r, wrap)
        rho[:, op.kept] = tape.mask(f"{spec.label}/z").reshape(batch, -1)
    return rho.reshape(batch, *op.shape)


def _deal_quadratics(
    tape: DealerTape, op: ir.Activation, r: np.ndarray, alpha: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    shift = op.in_frac - op.quad_frac
    power = U64(op.open_bits - shift)
    big_r, m = r >> U64(shift), r >> U64(op.open_bits - 1)
    alpha_r, square = alpha * big_r, big_r * big_r
    tape.share(f"{op.name}/quad/R", big_r)
    tape.share(f"{op.name}/quad/aR", alpha_r)
    tape.share(f"{op.name}/quad/RR", square)
    tape.share(f"{op.name}/quad/Q", beta * big_r - alpha_r * big_r)
    if wrap_bits(op.quad_open_bits, op.open_bits, shift):
        product = big_r * m
        tape.share(f"{op.name}/quad/m", m)
        tape.share(f"{op.name}/quad/am", alpha * m)
        tape.share(f"{op.name}/quad/Rm", product)
        tape.share(f"{op.name}/quad/Qm", alpha * (U64(2) * product - (m << power)) - beta * m)
    wire = tape.mask(f"{op.name}/quad/z") >> U64(op.quad_shift)
    tape.share(f"{op.name}/quad/Z", wire)
    return wire.reshape(r.shape)


class Prepared:
    """A party's material for one activation layer.

    Args:
        coefficients: this party's shares of a, b, c per channel.
        opened: Â and B̂ per channel. Both are None for a layer that keeps every ReLU.
    """

    def __init__(
        self,
        tape: PartyTape,
        op: ir.Activation,
        batch: int,
        comparison: ComparisonName,
        coefficients: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
        opened: tuple[np.ndarray, np.ndarray] | None,
    ) -> None:
        self.op, self.coefficients = op, coefficients
        self.quad_index, self.kept = op.quad_index, np.ascontiguousarray(op.kept, np.int64)
        self.r = tape.mask(f"{op.name}/r").reshape(batch, op.size)
        rho = np.empty_like(self.r)
        if opened is not None and op.quad_count:
            self._prepare_quadratics(tape, batch, opened)
            rho[:, self.quad_index] = tape.share(f"{op.name}/quad/Z").reshape(batch, -1)
        if op.kept_count:
            spec = comparison_of(op, batch)
            big_r = tape.share(f"{spec.label}/R")
            wrap = tape.share(f"{spec.label}/m") if spec.wrap_bits else np.zeros_like(big_r)
            self.comparison = COMPARISONS[comparison].Prepared(tape, spec, big_r, wrap)
            self.kept_mask = tape.mask(f"{spec.label}/z").reshape(batch, -1)
            rho[:, self.kept] = self.kept_mask
        self.rho = rho.reshape(batch, *op.shape)

    def _prepare_quadratics(self, tape: PartyTape, batch: int, opened: tuple[np.ndarray, np.ndarray]) -> None:
        op, shape = self.op, (batch, self.op.quad_count)
        shift = op.in_frac - op.quad_frac
        power = U64(op.open_bits - shift)
        channels = _channels(op, self.quad_index)
        a, b = opened[0][channels], opened[1][channels]

        def share(value: str) -> np.ndarray:
            return tape.share(f"{op.name}/quad/{value}").reshape(shape)

        big_r = share("R")
        p0 = a * big_r - share("aR")
        q0 = a * share("RR") - b * big_r + share("Q")
        p1, q1 = p0, q0
        if wrap_bits(op.quad_open_bits, op.open_bits, shift):
            m = share("m")
            p1 = p0 - ((a * m - share("am")) << power)
            q1 = q0 + ((a * ((m << power) - U64(2) * share("Rm")) + b * m + share("Qm")) << power)
        self.p, self.q = (p0, p1), (q0, q1)
        self.quad_mask = tape.mask(f"{op.name}/quad/z").reshape(shape)

    def run(self, exchange: Exchange, share: np.ndarray) -> np.ndarray:
        """The wire's public value."""
        op, batch = self.op, len(share)
        opened = open_sum(exchange, f"{op.name}/a", share.reshape(batch, op.size), self.r, op.open_bits)
        parts: list[tuple[np.ndarray, int]] = []
        if op.quad_count:
            parts.append((self._quadratics(opened), op.quad_open_bits))
        if op.kept_count:
            parts.append((self._kept(exchange, opened), op.bits))
        values = exchange.open(f"{op.name}/b", parts)
        wire = np.empty((batch, op.size), np.uint64)
        if op.quad_count:
            _native.scatter_shift(wire, self.quad_index, values[0], op.quad_shift)
        if op.kept_count:
            _native.scatter_shift(wire, self.kept, values[-1], 0)
        return wire.reshape(batch, *op.shape)

    def _quadratics(self, opened: np.ndarray) -> np.ndarray:
        op = self.op
        assert self.coefficients is not None
        return _native.quadratic_share(
            opened, self.quad_index, op.size // op.shape[0], op.open_bits, op.in_frac - op.quad_frac,
            *self.p, *self.q, *self.coefficients, self.quad_mask,
        )  # fmt: skip

    def _kept(self, exchange: Exchange, opened: np.ndarray) -> np.ndarray:
        op = self.op
        shift = op.in_frac - op.kept_frac
        public, lifted = lift(_native.gather(opened, self.kept).reshape(-1), op.open_bits, shift)
        points = [public - _encode_signed(knot) for knot in op.knots]
        pieces = self.comparison.relu(exchange, points, lifted, op.open_bits - shift)
        total = self.kept_mask.reshape(-1).copy()
        if exchange.party == 0:
            total += _encode_signed(op.offset)
        for slope, piece in zip(op.slopes, pieces):
            total += piece if slope == 1 else _encode_signed(slope) * piece
        return reduce(total, op.bits).reshape(self.kept_mask.shape)
