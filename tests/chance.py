"""Where randomness as it should be ends: limits that it passes with a chance of 1e-15, each time it is looked at.

The suite looks less than a hundred thousand times, so that a failure by chance is one in ten thousand million runs.
What these checks are for (a constant bit, a byte that is not uniform, values used twice) is far beyond every limit.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

CHANCE = 1e-15
_BYTES = float(stats.chi2.isf(CHANCE / 1000, 255))  # the approximation by χ² errs by less than this factor


def fair(ones: int, count: int) -> bool:
    """Whether so many of `count` bits may be one where each is with probability one half (Chernoff's bound)."""
    entropy = sum(-part * math.log(part / count) for part in (ones, count - ones) if part)
    return 2 * math.exp(entropy - count * math.log(2)) >= CHANCE


def uneven(values: np.ndarray) -> str:
    """What is wrong with bytes that should be uniform, by χ²; empty when nothing is. At least 4,096 are needed."""
    assert values.size >= 4096, f"{values.size} bytes are too few to judge"
    expected = values.size / 256
    found = float((np.square(np.bincount(values.reshape(-1), minlength=256) - expected) / expected).sum())
    return "" if found < _BYTES else f"χ² = {found:.0f} of {values.size} bytes; uniform ones stay below {_BYTES:.0f}"


def coincidences(pairs: float, bits: int) -> int:
    """How many of so many pairs of uniform values of `bits` bits may be equal (the tail of a Poisson distribution)."""
    mean, most = pairs / 2.0**bits, 0
    while stats.poisson.sf(most, mean) >= CHANCE:
        most += 1
    return most
