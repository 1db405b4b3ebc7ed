"""Widths: fractional bits, ring widths and comparison windows of every operation, from calibrated ranges.

Rules (f is the program's number of fractional bits):

* a sum y is opened modulo 2**open_bits with |y| < 2**(open_bits − 2 − frac); the calibrated largest |y| times `margin`
  must fit;
* a wire is known modulo 2**bits, enough for everything computed from it up to the next opening;
* a quadratic's opening B takes bits + quad_shift <= 64, which bounds the precision inside the quadratic;
* a comparison's payload takes 2·bits + wrap bits <= 128.

Widths up to 44 are rounded up to 44, where the convolution kernels are at their best.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autorep.compiler.draft import DRAFT_FRAC, Draft
from autorep.compiler.piecewise import sigmoid_lines
from autorep.compiler.ranges import Calibration
from autorep.errors import RangeError
from autorep.program.ir import Activation, Add, Affine, Conv, Input, Linear, MaxPool, Op, Product, Requantize

FRACTIONS = (16, 15, 14, 13, 12)  # tried in this order
COMMON_BITS = 44
QUADRATIC_BITS = 32  # least lead_frac + 2·quad_frac; below, a quadratic is too coarse to be useful
SIGMOID_SLOPE_FRAC = 7
WIDEST_BITS = 46  # of a sum whose weights get extra fractional bits
DCF_PAYLOAD_BITS = 128


class _DoesNotFit(Exception):
    """One layer does not fit at the tried precision."""


def assign_widths(
    draft: Draft, calibration: Calibration, margin: float, fractions: Sequence[int] = FRACTIONS
) -> list[Op]:
    """Operations with every width and scale filled in, at the largest f that fits.

    Raises RangeError naming the layer, its range and the remedies when none does.
    """
    reason: _DoesNotFit | None = None
    for frac in fractions:
        try:
            return _Planner(draft, calibration, margin, frac).run()
        except _DoesNotFit as error:
            reason = error
    raise RangeError(
        f"{reason} at {fractions[-1]} fractional bits, with a safety margin of {margin:g}. Remedies: train with a "
        "range penalty or batch norm so that values stay small, keep more of this layer's ReLUs, "
        "compile with a smaller margin, or set a share of the images aside (outliers)"
    )


@dataclass(frozen=True)
class Headroom:
    """How far beyond calibration one opened layer can go before its value wraps in the ring.

    Attributes:
        largest: calibrated largest |y|.
        limit: |y| up to which every result is right.
        factor: limit / largest.
        bits: log2(factor).
        limited_by: "ring" (the whole value would wrap) or "window" (a kept comparison would be wrong).
    """

    layer: str
    operation: str
    largest: float
    limit: float
    factor: float
    bits: float
    limited_by: str


def headroom(ops: Sequence[Op], calibration: Calibration) -> list[Headroom]:
    """One row per operation that opens or compares, in order."""
    rows = []
    by_name = {op.name: op for op in ops}
    for op in ops:
        largest = calibration.values[op.inputs[0]].largest if op.inputs else 0.0
        limits: list[tuple[float, float, str]] = []
        if isinstance(op, Activation):
            limits.append((largest, 2.0 ** (op.open_bits - 2 - op.in_frac), "ring"))
            if op.kept_count:
                reach = 2.0 ** (op.window - op.kept_frac) - max(abs(k) for k in op.knots) * 2.0**-op.kept_frac
                limits.append((calibration.activations[op.name].kept_largest, reach, "window"))
        elif isinstance(op, Requantize):
            source = by_name[op.inputs[0]]
            power = op.bits - 1 - op.frac if op.one_round else op.open_bits - 2 - source.frac
            limits.append((largest, 2.0**power, "ring"))
        elif isinstance(op, MaxPool):
            limits.append((largest, 2.0 ** (op.window - op.frac - 1), "window"))
        elif op is ops[-1]:
            largest = calibration.values[op.name].largest
            limits.append((largest, 2.0 ** (op.bits - 1 - op.frac), "ring"))
        if limits:
            largest, limit, by = min(limits, key=lambda row: row[1] / max(row[0], 1e-30))
            factor = limit / max(largest, 1e-30)
            rows.append(Headroom(op.name, type(op).__name__, largest, limit, factor, math.log2(factor), by))
    return rows


class _Planner:
    """One attempt at one f."""

    def __init__(self, draft: Draft, calibration: Calibration, margin: float, frac: int) -> None:
        self.draft, self.calibration, self.margin, self.f = draft, calibration, margin, frac
        self.ops = dict(draft.ops)
        self.needs: dict[str, int] = dict.fromkeys(self.ops, 0)

    def run(self) -> list[Op]:
        for name in self.ops:
            self._scale(name)
        for name in reversed(self.ops):
            self._width(name)
        return list(self.ops.values())

    def _update(self, name: str, **changes: Any) -> None:
        self.ops[name] = dataclasses.replace(self.ops[name], **changes)

    def _integer_bits(self, largest: float) -> int:
        """I with margin·largest < 2**I."""
        return max(1, math.floor(math.log2(max(largest * self.margin, 1e-30))) + 1)

    # forward: fractional bits --------------------------------------------------------------------------

    def _scale(self, name: str) -> None:
        op = self.ops[name]
        sources = [self.ops[source] for source in op.inputs]
        match op:
            case Conv() | Linear() | Affine():
                weight_frac = self._weight_frac(op)
                self._update(name, weight_frac=weight_frac, frac=sources[0].frac + weight_frac)
            case Product():
                self._update(name, frac=sources[0].frac + sources[1].frac)
            case Add():
                # a wire alone is lifted to the scale of a sum, so that the activation after it has bits to drop
                self._update(name, frac=max([2 * self.f, *(source.frac for source in sources)]))
            case Activation():
                self._update(name, in_frac=sources[0].frac, frac=self.f, **self._lines(op))
            case Requantize():
                self._update(name, frac=self.f, shift=sources[0].frac - self.f)
            case Input():
                self._update(name, frac=self.f)
            case _:
                self._update(name, frac=sources[0].frac)

    def _weight_frac(self, op: Op) -> int:
        """f, and more where the input is so large (a sum pool) that weights rounded at f bits would show.

        Rounding weights to w bits moves the output by about 2**-w·0.29·√(fan-in·mean square of the input), which is
        kept below 2**(5 − f) of the output's own size (at least of 1), as far as the sum stays within WIDEST_BITS.
        """
        weight = self.draft.parameter(op.name, "weight")
        fan_in = math.prod(weight.shape[1:])
        square = self.calibration.values[op.inputs[0]].square
        error = 0.29 * math.sqrt(fan_in * square) * 2.0 ** (-self.f)
        size = math.sqrt(max(1.0, self.calibration.values[op.name].square))
        extra = math.ceil(math.log2(max(error / size, 1e-30) / 2.0 ** (5 - self.f)))
        taken = self.ops[op.inputs[0]].frac + self.f + self._integer_bits(self.calibration.values[op.name].largest) + 2
        widest = min(WIDEST_BITS, 64 + self.f - QUADRATIC_BITS)  # what a quadratic before it can still deliver
        return self.f + min(max(extra, 0), max(widest - taken, 0))

    def _lines(self, op: Activation) -> dict[str, Any]:
        """The piecewise-linear function at this f."""
        if op.function == "sigmoid":
            lines = sigmoid_lines(self.f - SIGMOID_SLOPE_FRAC, SIGMOID_SLOPE_FRAC)
            return {
                "knots": lines.knots,
                "slopes": lines.slopes,
                "offset": lines.offset,
                "kept_frac": lines.knot_frac,
            }
        scale = 2.0 ** (self.f - DRAFT_FRAC)
        knots = tuple(round(knot * scale) for knot in op.knots)
        return {"knots": knots, "offset": round(op.offset * scale), "kept_frac": self.f}

    # backward: ring widths -----------------------------------------------------------------------------

    def _width(self, name: str) -> None:
        op = self.ops[name]
        seen = self.calibration.values[name]
        need = self.needs[name]
        if op.kind == "wire" or name == next(reversed(self.ops)):
            need = max(need, op.frac + self._integer_bits(seen.largest) + 1)
        bits = 64 if isinstance(op, Input) else _round_width(need)
        if bits > 64:
            raise _DoesNotFit(f"{self._describe(op)}: {bits} bits are needed, 64 are there")
        self._update(name, bits=bits)
        passed_on = bits
        match op:
            case Activation():
                passed_on = self._activation_widths(name)
            case Requantize():
                passed_on = self._requantize_widths(name)
            case MaxPool():
                largest = 2 * self.calibration.values[op.inputs[0]].largest
                self._update(name, window=min(op.frac + self._integer_bits(largest), bits - 1))
        for source in op.inputs:
            self.needs[source] = max(self.needs[source], passed_on)

    def _open_bits(self, op: Op) -> int:
        source = self.ops[op.inputs[0]]
        largest = self.calibration.values[source.name].largest
        open_bits = _round_width(source.frac + self._integer_bits(largest) + 2)
        if open_bits > 62:
            raise _DoesNotFit(f"{self._describe(source)}: opening it takes {open_bits} bits, 62 are there")
        return open_bits

    def _requantize_widths(self, name: str) -> int:
        op = self.ops[name]
        assert isinstance(op, Requantize)
        one_round = op.bits + op.shift <= 64 and self._only_from_input(op.inputs[0])
        open_bits = 64 if one_round else self._open_bits(op)
        self._update(name, one_round=one_round, open_bits=open_bits)
        return open_bits

    def _only_from_input(self, name: str) -> bool:
        """Whether a sum is linear in the client's image, which is known modulo 2**64."""
        op = self.ops[name]
        if isinstance(op, Input):
            return True
        opens = isinstance(op, Activation | Requantize | MaxPool)
        return not opens and all(self._only_from_input(source) for source in op.inputs)

    def _activation_widths(self, name: str) -> int:
        op = self.ops[name]
        assert isinstance(op, Activation)
        open_bits = self._open_bits(op)
        seen = self.calibration.activations[name]
        changes: dict[str, Any] = {"open_bits": open_bits}
        if op.kept_count:
            furthest = max(abs(knot) for knot in op.knots) * 2.0**-op.kept_frac
            window = op.kept_frac + max(2, self._integer_bits(seen.kept_largest + furthest / self.margin))
            changes["window"] = min(window, open_bits - 2 - op.in_frac + op.kept_frac)
            payload = 2 * op.bits + max(0, op.bits - open_bits + op.in_frac - op.kept_frac)
            if payload > DCF_PAYLOAD_BITS:
                raise _DoesNotFit(f"{self._describe(op)}: its comparison takes {payload} bits, 128 are there")
        if op.quad_count:
            changes["lead_frac"], changes["quad_frac"] = self._quadratic_fracs(op)
        self._update(name, **changes)
        return open_bits

    def _quadratic_fracs(self, op: Activation) -> tuple[int, int]:
        """lead_frac and quad_frac that make the quadratic most precise within bits + quad_shift <= 64.

        Rounding y to g bits moves a·y² + b·y by 2**-g·|2ay + b|/√6 (random), rounding a to l bits by 2**-l·y²/√12.
        """
        total = 64 - op.bits + op.frac
        if total < QUADRATIC_BITS:
            raise _DoesNotFit(
                f"{self._describe(op)}: its result takes {op.bits} bits, which leaves {total} for the quadratic, "
                f"and {QUADRATIC_BITS} are needed"
            )
        seen = self.calibration.activations[op.name]
        a, b = self.draft.parameter(op.name, "a"), self.draft.parameter(op.name, "b")
        steepness = 4 * np.mean(a**2) * seen.quad_square + np.mean(b**2)

        def error(quad_frac: int) -> float:
            lead = total - 2 * quad_frac
            return 4.0**-quad_frac / 6 * steepness + 4.0**-lead / 12 * seen.quad_fourth

        best = min(range(8, min(op.frac, op.in_frac, (total - 4) // 2) + 1), key=error)
        return min(total - 2 * best, 24), best

    def _describe(self, op: Op) -> str:
        largest = self.calibration.values[op.name].largest
        return f"layer {op.name!r} ({type(op).__name__}) reaches |value| = {largest:.4g} in calibration"


def _round_width(bits: int) -> int:
    """The next width at which the kernels are as fast: 44, then 46 (the last with the fastest convolution)."""
    return next((width for width in (COMMON_BITS, WIDEST_BITS) if bits <= width), bits)
