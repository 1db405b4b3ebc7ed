"""Widths: fractional bits, ring widths and comparison windows of every operation, from calibrated ranges.

Rules (f is the program's number of fractional bits):

* a sum y is opened modulo 2**open_bits with |y| < 2**(open_bits − 2 − frac); the calibrated largest |y| times `margin`
  must fit;
* a wire is known modulo 2**bits, enough for everything computed from it up to the next opening; it has f fractional
  bits, more where its values are small, fewer where they are large, so that its precision follows them;
* weights have f fractional bits, more where they are small, fewer where they are so large that nothing else fits;
* a quadratic's opening B takes bits + quad_shift <= 64, which bounds the precision inside the quadratic;
* a comparison's payload takes 2·bits + wrap bits <= 128;
* whole weights on a wire of whole numbers (binary layers) have no fractional bits.

Widths up to 44 are rounded up to 44, where the convolution kernels are at their best, except between signs, whose keys
and openings shrink with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autorep.compiler.binary import is_whole, largest_count
from autorep.compiler.draft import DRAFT_FRAC, Draft
from autorep.compiler.piecewise import spline
from autorep.compiler.ranges import Calibration
from autorep.errors import RangeError
from autorep.program import ir
from autorep.program.quadratics import LARGEST_PRODUCT, largest_product
from autorep.program.room import Room, rooms

OPENED = (ir.Input, ir.Activation, ir.Requantize, ir.Sign)  # what gives a wire its scale

FRACTIONS = (16, 15, 14, 13, 12)  # tried in this order
COMMON_BITS = 44
QUADRATIC_BITS = 32  # least lead_frac + 2·quad_frac; below, a quadratic is too coarse to be useful
LEAST_QUAD_FRAC = 8  # of y inside a quadratic
SLOPE_FRAC = 7  # of splines
SIGN_FRAC = 12  # at which a sum that is not whole is compared for its sign
WIDEST_BITS = 46  # of a sum whose weights get extra fractional bits
HARD_BITS = 60  # of a sum whose weights lose fractional bits to fit
DCF_PAYLOAD_BITS = 128
WEIGHT_STEPS = 11  # log2 of the steps that weights are fine enough for, within their root mean square
FINEST = 26  # further fractional bits of a wire of small values
PEAK = 16.0  # a wire's largest value is at most this many times its typical one
SMALL, LARGE = -4.0, 12.0  # log2 of a wire's typical and largest values between which it has f fractional bits


class _DoesNotFit(Exception):
    """One layer does not fit at the tried precision."""


def assign_widths(
    draft: Draft, calibration: Calibration, margin: float, fractions: Sequence[int] = FRACTIONS
) -> list[ir.Op]:
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
        "range penalty or batch norm so that values stay small, start from flatter quadratics (a smaller curve), keep "
        "more of this layer's ReLUs, compile with a smaller margin, or set a share of the images aside (outliers)"
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


def headroom(ops: Sequence[ir.Op], calibration: Calibration) -> list[Headroom]:
    """One row per operation that opens or compares, in order."""
    rows = []
    by_name = {op.name: op for op in ops}
    for op in ops:
        bounds = [
            (_calibrated_largest(calibration, op, room), room)
            for room in rooms(op, by_name[op.inputs[0]] if op.inputs else None, op is ops[-1])
        ]
        if bounds:
            largest, room = min(bounds, key=lambda row: row[1].limit / max(row[0], 1e-30))
            factor = room.limit / max(largest, 1e-30)
            rows.append(Headroom(op.name, type(op).__name__, largest, room.limit, factor, math.log2(factor), room.by))
    return rows


def _calibrated_largest(calibration: Calibration, op: ir.Op, room: Room) -> float:
    return calibration.values[room.read].largest if room.kept is None else calibration.activations[op.name].kept_largest


class _Planner:
    """One attempt at one f."""

    def __init__(self, draft: Draft, calibration: Calibration, margin: float, frac: int) -> None:
        self.draft, self.calibration, self.margin, self.f = draft, calibration, margin, frac
        self.ops = dict(draft.ops)
        self.needs: dict[str, int] = dict.fromkeys(self.ops, 0)
        self.wire_fracs = self._wire_fracs()
        self.reach = self._reaches()
        self.narrow = self._between_signs()

    def run(self) -> list[ir.Op]:
        for name in self.ops:
            self._scale(name)
        for name in reversed(self.ops):
            self._width(name)
        return list(self.ops.values())

    def _update(self, name: str, **changes: Any) -> None:
        self.ops[name] = dataclasses.replace(self.ops[name], **changes)

    def _integer_bits(self, largest: float) -> int:
        """I with margin·largest < 2**I; negative for small values."""
        return math.floor(math.log2(max(largest * self.margin, 2.0**-30))) + 1

    def _reaches(self) -> dict[str, float]:
        """Largest |value| that every result must be able to take: its own, and the knots it is compared with."""
        reach = {name: seen.largest for name, seen in self.calibration.values.items()}
        for op in reversed(self.ops.values()):
            furthest = reach[op.name]
            if isinstance(op, ir.Activation):
                furthest = _furthest_knot(op) / self.margin if op.kept_count else 0.0
            elif not isinstance(op, ir.Add | ir.Flatten | ir.Gather | ir.SumPool):
                continue
            for source in op.inputs:
                reach[source] = max(reach[source], furthest)
        return reach

    def _between_signs(self) -> set[str]:
        """Results that only signs read, perhaps after layers that open nothing."""
        readers: dict[str, list[ir.Op]] = {name: [] for name in self.ops}
        narrow: set[str] = set()
        for op in reversed(self.ops.values()):
            own = readers[op.name]
            if own and all(isinstance(r, ir.Sign) or (r.name in narrow and not isinstance(r, OPENED)) for r in own):
                narrow.add(op.name)
            for source in op.inputs:
                readers[source].append(op)
        return narrow

    def _wire_fracs(self) -> dict[str, int]:
        """Fractional bits of every wire that is opened, one number for all that meet in one tensor."""
        groups: dict[str, set[str]] = {}
        for op in self.ops.values():
            if isinstance(op, OPENED):
                groups[op.name] = {op.name}
        for op in self.ops.values():
            if isinstance(op, ir.Concat | ir.Gather) and op.kind == "wire" and len(op.inputs) > 1:
                together = set().union(*(groups[root] for source in op.inputs for root in self._roots(source)))
                groups.update(dict.fromkeys(together, together))
        return {name: self._wire_frac(group) for name, group in groups.items()}

    def _roots(self, name: str) -> set[str]:
        """The opened wires that a rearranged wire is made of."""
        op = self.ops[name]
        return {name} if isinstance(op, OPENED) else set().union(*(self._roots(source) for source in op.inputs))

    def _wire_frac(self, group: set[str]) -> int:
        """f; more for small values and fewer for large ones, as far as splines and quadratics among them allow."""
        if all(isinstance(self.ops[name], ir.Sign) for name in group):
            return 0
        values = [self.calibration.values[name] for name in group]
        activations = [op for op in map(self.ops.__getitem__, group) if isinstance(op, ir.Activation)]
        furthest = max(value.largest for value in values)
        typical = max(math.sqrt(max(value.square for value in values)), furthest / PEAK, 2.0**-30)
        coarser = math.ceil(math.log2(max(furthest * self.margin, 1.0)) - LARGE)
        fewest = COMMON_BITS - QUADRATIC_BITS if any(op.quad_count for op in activations) else 2
        finer = math.ceil(SMALL + 1 - math.log2(typical)) if math.log2(typical) < SMALL else 0
        if any(op.function != "piecewise" for op in activations):  # lines are drawn on a grid of these bits
            finer = 0
        return self.f + min(finer, FINEST) - max(min(coarser, self.f - fewest), 0)

    # forward: fractional bits --------------------------------------------------------------------------

    def _scale(self, name: str) -> None:
        op = self.ops[name]
        sources = [self.ops[source] for source in op.inputs]
        match op:
            case ir.Conv() | ir.Linear() | ir.Affine():
                weight_frac = self._weight_frac(op)
                self._update(name, weight_frac=weight_frac, frac=sources[0].frac + weight_frac)
            case ir.Product():
                self._update(name, frac=sources[0].frac + sources[1].frac)
            case ir.Add():
                # wires alone are lifted to the scale of a sum, so that the activation after them has bits to drop
                lift = 0 if any(source.kind == "sum" for source in sources) else self.f
                self._update(name, frac=max(source.frac for source in sources) + lift)
            case ir.Activation():
                frac = min(self.wire_fracs[name], sources[0].frac)
                self._update(name, in_frac=sources[0].frac, frac=frac, **self._lines(op, frac))
            case ir.Sign():
                whole = min(SIGN_FRAC, sources[0].frac)
                self._update(name, in_frac=sources[0].frac, frac=self.wire_fracs[name], kept_frac=whole)
            case ir.Requantize():
                frac = min(self.wire_fracs[name], sources[0].frac)
                self._update(name, frac=frac, shift=sources[0].frac - frac)
            case ir.Input():
                self._update(name, frac=self.wire_fracs[name])
            case ir.MaxPool() | ir.SumPool() | ir.Flatten() | ir.Concat() | ir.Gather():
                if len({source.frac for source in sources}) > 1:
                    raise _DoesNotFit(f"{self._describe(op)}: its inputs have scales that cannot be made one")
                self._update(name, frac=sources[0].frac)

    def _weight_frac(self, op: ir.Op) -> int:
        """f, more where weights are so small or inputs so large (a sum pool) that weights rounded at f bits would show.

        Weights get WEIGHT_STEPS bits below their root mean square. Rounding weights to w bits moves the output by about
        2**-w·0.29·√(fan-in·mean square of the input), which is kept below 2**(5 − f) of the output's own size (at least
        of 1). The former as far as the sum stays within COMMON_BITS, the latter within WIDEST_BITS; a sum beyond
        HARD_BITS takes bits away instead.
        """
        weight = self.draft.parameter(op.name, "weight")
        on_counts = op.name in self.narrow and not self.ops[op.inputs[0]].frac
        if on_counts and is_whole(weight, self.draft.parameter(op.name, "bias")):
            return 0
        if not weight.any():  # a branch that starts at nothing
            return self.f
        fan_in = math.prod(weight.shape[1:])
        square = self.calibration.values[op.inputs[0]].square
        error = 0.29 * math.sqrt(fan_in * square) * 2.0 ** (-self.f)
        size = math.sqrt(max(1.0, self.calibration.values[op.name].square))
        extra = math.ceil(math.log2(max(error / size, 1e-30) / 2.0 ** (5 - self.f)))
        typical = math.log2(max(float(np.sqrt(np.mean(np.square(weight, dtype=np.float64)))), 2.0**-40))
        small = math.ceil(WEIGHT_STEPS - typical)
        others = self.ops[op.inputs[0]].frac + self._integer_bits(self.reach[op.name]) + 2
        widest = min(WIDEST_BITS, 64 + self.f - QUADRATIC_BITS)  # what a quadratic before it can still deliver
        finer = max(self.f, min(small, COMMON_BITS - others), min(self.f + extra, widest - others))
        return max(min(finer, HARD_BITS - others), 4)

    def _lines(self, op: ir.Activation, frac: int) -> dict[str, Any]:
        """The piecewise-linear function with `frac` fractional bits."""
        if op.function != "piecewise":
            if frac - SLOPE_FRAC < 1:
                raise _DoesNotFit(f"{self._describe(op)}: {frac} fractional bits are too few for its lines")
            lines = spline(op.function, op.arguments, frac - SLOPE_FRAC, SLOPE_FRAC)
            return {
                "knots": lines.knots,
                "slopes": lines.slopes,
                "offset": lines.offset,
                "kept_frac": lines.knot_frac,
            }
        scale = 2.0 ** (frac - DRAFT_FRAC)
        knots = tuple(round(knot * scale) for knot in op.knots)
        return {"knots": knots, "offset": round(op.offset * scale), "kept_frac": frac}

    # backward: ring widths -----------------------------------------------------------------------------

    def _width(self, name: str) -> None:
        op = self.ops[name]
        seen = self.calibration.values[name]
        need = self.needs[name]
        last = name == next(reversed(self.ops))
        if op.kind == "wire" or last:  # one more bit for the difference of two logits (`program/answer.py`)
            need = max(need, op.frac + self._integer_bits(seen.largest) + 1 + last)
        bits = 64 if isinstance(op, ir.Input) else need if name in self.narrow else _round_width(need)
        if bits > 64:
            raise _DoesNotFit(f"{self._describe(op)}: {bits} bits are needed, 64 are there")
        self._update(name, bits=bits)
        passed_on = bits
        match op:
            case ir.Activation():
                passed_on = self._activation_widths(name)
            case ir.Sign():
                passed_on = self._sign_widths(name)
            case ir.Requantize():
                passed_on = self._requantize_widths(name)
            case ir.MaxPool():
                largest = 2 * self.calibration.values[op.inputs[0]].largest
                self._update(name, window=min(op.frac + max(1, self._integer_bits(largest)), bits - 1))
        for source in op.inputs:
            self.needs[source] = max(self.needs[source], passed_on)

    def _open_bits(self, op: ir.Op) -> int:
        source = self.ops[op.inputs[0]]
        needed = source.frac + (self._whole_bits(source) or self._integer_bits(self.reach[source.name])) + 2
        needed = max(needed, source.frac - _coarsest(op) + 3)  # where values vanish, the shift's own bits remain
        open_bits = max(needed, 4) if isinstance(op, ir.Sign) else _round_width(needed)
        if open_bits > 62:
            raise _DoesNotFit(f"{self._describe(source)}: opening it takes {open_bits} bits, 62 are there")
        return open_bits

    def _whole_bits(self, op: ir.Op) -> int:
        """I with |y| < 2**I for every input of a binary layer; 0 for any other."""
        if not isinstance(op, ir.Conv | ir.Linear) or op.weight_frac or op.name not in self.narrow:
            return 0
        weight, bias = (self.draft.parameter(op.name, key) for key in ("weight", "bias"))
        furthest = np.abs(weight).reshape(len(weight), -1).sum(axis=1).max() * largest_count(self.ops, op.inputs[0])
        return int(furthest + np.abs(bias).max()).bit_length()

    def _requantize_widths(self, name: str) -> int:
        op = self.ops[name]
        assert isinstance(op, ir.Requantize)
        one_round = op.bits + op.shift <= 64 and self._only_from_input(op.inputs[0])
        open_bits = 64 if one_round else self._open_bits(op)
        self._update(name, one_round=one_round, open_bits=open_bits)
        return open_bits

    def _only_from_input(self, name: str) -> bool:
        """Whether a sum is linear in the client's image, which is known modulo 2**64."""
        op = self.ops[name]
        if isinstance(op, ir.Input):
            return True
        opens = isinstance(op, ir.Activation | ir.Sign | ir.Requantize | ir.MaxPool)
        return not opens and all(self._only_from_input(source) for source in op.inputs)

    def _sign_widths(self, name: str) -> int:
        op = self.ops[name]
        assert isinstance(op, ir.Sign)
        open_bits = self._open_bits(op)
        self._update(name, open_bits=open_bits, window=open_bits - 2 - op.in_frac + op.kept_frac)
        return open_bits

    def _activation_widths(self, name: str) -> int:
        op = self.ops[name]
        assert isinstance(op, ir.Activation)
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
            changes["lead_frac"], changes["quad_frac"] = self._quadratic_fracs(
                dataclasses.replace(op, open_bits=open_bits)
            )
        self._update(name, **changes)
        return open_bits

    def _quadratic_fracs(self, op: ir.Activation) -> tuple[int, int]:
        """lead_frac and quad_frac that make the quadratic most precise within bits + quad_shift <= 64, and within what
        two servers can prepare without a dealer; if nothing is within that, as precise as with a dealer."""
        most = 64 - op.bits + op.frac
        if most < QUADRATIC_BITS:
            raise _DoesNotFit(
                f"{self._describe(op)}: its result takes {op.bits} bits, which leaves {most} for the quadratic, "
                f"and {QUADRATIC_BITS} are needed"
            )
        a, b = (float(np.abs(self.draft.parameter(op.name, name)).max()) for name in "ab")
        for total in range(most, QUADRATIC_BITS - 1, -1):
            lead, quad = self._precise_fracs(op, total)
            finer = dataclasses.replace(op, lead_frac=lead, quad_frac=quad)
            if largest_product(finer, a * 2.0**lead + 1, b * 2.0 ** (lead + quad) + 1) < LARGEST_PRODUCT:
                return lead, quad
        return self._precise_fracs(op, most)

    def _precise_fracs(self, op: ir.Activation, total: int) -> tuple[int, int]:
        """lead_frac and quad_frac of the least error, lead_frac + 2·quad_frac being `total`.

        Rounding y to g bits moves a·y² + b·y by 2**-g·|2ay + b|/√6 (random), rounding a to l bits by 2**-l·y²/√12.
        """
        seen = self.calibration.activations[op.name]
        a, b = self.draft.parameter(op.name, "a"), self.draft.parameter(op.name, "b")
        steepness = 4 * np.mean(a**2) * seen.quad_square + np.mean(b**2)

        def error(quad_frac: int) -> float:
            lead = total - 2 * quad_frac
            return 4.0**-quad_frac / 6 * steepness + 4.0**-lead / 12 * seen.quad_fourth

        best = min(range(LEAST_QUAD_FRAC, min(op.frac, op.in_frac, (total - 4) // 2) + 1), key=error)
        return min(total - 2 * best, 24), best

    def _describe(self, op: ir.Op) -> str:
        largest = self.calibration.values[op.name].largest
        return f"layer {op.name!r} ({type(op).__name__}) reaches |value| = {largest:.4g} in calibration"


def _coarsest(op: ir.Op) -> int:
    """Fewest fractional bits to which an operation may shift the sum that it opens."""
    if not isinstance(op, ir.Activation | ir.Sign):
        return op.frac
    kept = op.kept_frac if isinstance(op, ir.Sign) or op.kept_count else op.frac
    return min(kept, LEAST_QUAD_FRAC) if isinstance(op, ir.Activation) and op.quad_count else kept


def _furthest_knot(op: ir.Activation) -> float:
    if op.function == "piecewise":
        return max(abs(knot) for knot in op.knots) * 2.0**-DRAFT_FRAC
    return max(abs(knot) for knot in spline(op.function, op.arguments, 9, SLOPE_FRAC).knots) * 2.0**-9


def _round_width(bits: int) -> int:
    """The next width at which the kernels are as fast: 44, then 46 (the last with the fastest convolution)."""
    return next((width for width in (COMMON_BITS, WIDEST_BITS) if bits <= width), bits)
