"""A sigmoid made of straight lines whose slopes and knots are small integers, with its error bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


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


@lru_cache(maxsize=8)
def sigmoid_lines(knot_frac: int, slope_frac: int, tolerance: float = 1.5e-3) -> Lines:
    """Longest segments that stay within `tolerance`, from 0 outwards; the negative side is the mirror image."""
    grid, step = 2.0**-knot_frac, 2.0**-slope_frac
    reach = np.arange(0, round(10 / grid) + 1)
    target = 1.0 / (1.0 + np.exp(-reach * grid))
    position, value = 0, 0.5
    knots: list[int] = []
    segment_slopes: list[int] = []
    while True:
        slope, end = _longest(target, position, value, grid, step, tolerance)
        segment_slopes.append(slope)
        if end == len(reach) - 1:
            break
        knots.append(end)
        value += slope * step * (end - position) * grid
        position = end
    changes = [after - before for before, after in zip(segment_slopes, segment_slopes[1:])]
    all_knots = tuple(-k for k in reversed(knots)) + tuple(knots)
    all_slopes = tuple(-c for c in reversed(changes)) + tuple(changes)
    offset = round((1.0 - value) * 2.0 ** (knot_frac + slope_frac))
    lines = Lines(all_knots, all_slopes, offset, knot_frac, slope_frac, 0.0)
    return Lines(all_knots, all_slopes, offset, knot_frac, slope_frac, _error(lines))


def _longest(
    target: np.ndarray, position: int, value: float, grid: float, step: float, tolerance: float
) -> tuple[int, int]:
    """The slope whose line from (position, value) stays within tolerance furthest, and where it stops."""
    best = (0, position)
    ahead = np.arange(len(target) - position)
    for slope in range(round(0.25 / step) + 1):
        off = np.abs(value + slope * step * grid * ahead - target[position:]) > tolerance
        end = position + (int(off.argmax()) - 1 if off.any() else len(ahead) - 1)
        if end > best[1]:
            best = (slope, end)
    if best[1] == position:
        raise ValueError(f"slopes in steps of {step} cannot follow the sigmoid within {tolerance}")
    return best


def _error(lines: Lines) -> float:
    """Largest distance, on a grid fine enough that nothing in between matters; constant beyond the last knot."""
    y = np.arange(-12, 12, 2.0**-12)
    approximate = np.full_like(y, lines.offset * 2.0 ** -(lines.knot_frac + lines.slope_frac))
    for knot, slope in zip(lines.knots, lines.slopes):
        approximate += slope * 2.0**-lines.slope_frac * np.maximum(y - knot * 2.0**-lines.knot_frac, 0)
    return float(np.abs(approximate - 1.0 / (1.0 + np.exp(-y))).max())
