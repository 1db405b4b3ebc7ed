"""Any activation as straight lines whose slopes and knots are small integers, with its error bound."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autorep.activations import ACTIVATIONS

TOLERANCE = 1.5e-3
MOST_LINES = 64
FURTHEST = 64.0  # where an activation must have become a straight line


@dataclass(frozen=True)
class Lines:
    """offset + Σ slopes[k]·relu(y − knots[k]); knots in units of 2**-knot_frac, slopes of 2**-slope_frac.

    error: the largest distance to the function over all real y, before the rounding of y.
    """

    knots: tuple[int, ...]
    slopes: tuple[int, ...]
    offset: int
    knot_frac: int
    slope_frac: int
    error: float

    @property
    def rounding(self) -> float:
        """What rounding y to knot_frac bits can add: one unit times the steepest slope."""
        steepest = max(np.abs(np.cumsum(self.slopes)))
        return float(steepest) * 2.0 ** -(self.slope_frac + self.knot_frac)

    def at(self, y: np.ndarray) -> np.ndarray:
        value = np.full_like(y, self.offset * 2.0 ** -(self.knot_frac + self.slope_frac))
        for knot, slope in zip(self.knots, self.slopes):
            value += slope * 2.0**-self.slope_frac * np.maximum(y - knot * 2.0**-self.knot_frac, 0)
        return value


@lru_cache(maxsize=64)
def spline(
    name: str, arguments: tuple[float, ...], knot_frac: int, slope_frac: int, tolerance: float = TOLERANCE
) -> Lines:
    """Longest segments that stay within `tolerance`, from left to right; beyond the outermost knots the asymptotes.

    Raises ValueError when slopes this coarse cannot follow the function, or it straightens too late.
    """
    kind, reach = ACTIVATIONS[name], _reach(name, arguments, tolerance)
    lines = _halves(name, arguments, reach, knot_frac, slope_frac, tolerance)
    lines = lines or _from_left(name, arguments, reach, knot_frac, slope_frac, tolerance)
    fine = np.arange(-2 * reach, 2 * reach, 2.0**-12)
    error = float(np.abs(lines.at(fine) - kind.function(fine, *arguments)).max())
    if error > 1.01 * tolerance:
        raise ValueError(f"{name}: straight lines come within {error:.2g} only")
    return dataclasses.replace(lines, error=error)


def _from_left(
    name: str, arguments: tuple[float, ...], reach: float, knot_frac: int, slope_frac: int, tolerance: float
) -> Lines:
    kind, grid, step = ACTIVATIONS[name], 2.0**-knot_frac, 2.0**-slope_frac
    first, last = -round(reach / grid), round(reach / grid)
    target = kind.function(np.arange(first, last + 1) * grid, *arguments)
    offset = round(float(target[0]) / (grid * step))
    ends, slopes = _segments(target, offset * grid * step, grid, step, tolerance)
    slopes = [0, *slopes, round(kind.slope / step)]
    knots = [first + end for end in (0, *ends)]
    changes = [after - before for before, after in zip(slopes, slopes[1:])]
    used = [k for k, change in enumerate(changes) if change]
    return Lines(tuple(knots[k] for k in used), tuple(changes[k] for k in used), offset, knot_frac, slope_frac, 0.0)


def _halves(
    name: str, arguments: tuple[float, ...], reach: float, knot_frac: int, slope_frac: int, tolerance: float
) -> Lines | None:
    """From 0 outwards, the left the mirror image of the right, for a function that is (sigmoid, tanh); else None."""
    kind, grid, step = ACTIVATIONS[name], 2.0**-knot_frac, 2.0**-slope_frac
    right = np.arange(round(reach / grid) + 1) * grid
    target, centre = kind.function(right, *arguments), float(kind.function(np.zeros(1), *arguments)[0])
    if not np.allclose(target + kind.function(-right, *arguments), 2 * centre):
        return None
    ends, slopes = _segments(target, centre, grid, step, tolerance)
    slopes = [*slopes, 0]
    changes = [after - before for before, after in zip(slopes, slopes[1:])]
    used = [k for k, change in enumerate(changes) if change]
    knots, changes = [ends[k] for k in used], [changes[k] for k in used]
    rise = sum(slope * (end - start) for slope, start, end in zip(slopes, [0, *ends], ends))
    return Lines(
        tuple(-knot for knot in reversed(knots)) + tuple(knots),
        tuple(-change for change in reversed(changes)) + tuple(changes),
        round(centre / (grid * step)) - rise,
        knot_frac,
        slope_frac,
        0.0,
    )


def _segments(
    target: np.ndarray, value: float, grid: float, step: float, tolerance: float
) -> tuple[list[int], list[int]]:
    """Where each segment ends and its slope, so that every line goes as far as it can."""
    steepest = int(np.ceil(np.abs(np.diff(target)).max() / grid / step)) + 1
    candidates = np.arange(-steepest, steepest + 1)
    position, ends, slopes = 0, [], []
    while position < len(target) - 1:
        chosen, end = _longest(target, position, value, grid, step * candidates, tolerance)
        slopes.append(int(candidates[chosen]))
        value += slopes[-1] * step * (end - position) * grid
        position = end
        ends.append(position)
        if len(ends) > MOST_LINES:
            raise ValueError(f"slopes in steps of {step} cannot follow the function with {MOST_LINES} lines")
    return ends, slopes


def _reach(name: str, arguments: tuple[float, ...], tolerance: float) -> float:
    """|y| from which on the function is its asymptotes."""
    kind, reach = ACTIVATIONS[name], 1.0
    while reach <= FURTHEST:
        far = np.array([-1e3, -reach, reach, 1e3])
        left, near_left, near_right, right = kind.function(far, *arguments) - np.array([0, 0, 1, 1]) * kind.slope * far
        if abs(near_left - left) < tolerance / 8 and abs(near_right - right) < tolerance / 8:
            return reach
        reach *= 1.25
    raise ValueError(f"{name}{arguments} is not straight beyond {FURTHEST}")


def _longest(
    target: np.ndarray, position: int, value: float, grid: float, slopes: np.ndarray, tolerance: float
) -> tuple[int, int]:
    """Which slope's line from (position, value) stays within tolerance furthest, and where it stops."""
    best, chosen = position, 0
    ahead = np.arange(len(target) - position)
    for number, slope in enumerate(slopes):
        off = np.abs(value + slope * grid * ahead - target[position:]) > tolerance
        end = position + (int(off.argmax()) - 1 if off.any() else len(ahead) - 1)
        if end > best or (end == best and abs(slope) < abs(slopes[chosen])):
            best, chosen = end, number
    if best == position:
        raise ValueError(f"slopes in steps of {slopes[1] - slopes[0]} cannot follow the function within {tolerance}")
    return chosen, best
