"""Truncations without a dealer: each party shifts its own share, and only the top two bits are ever added.

With r = r₀ + r₁ nobody knows r ≫ s. But R = R₀ + R₁ with R₀ = (r₀ + 2**(s−1)) ≫ s and R₁ = r₁ ≫ s differs from it
by less than two units, and the difference is a dither without bias: no bytes. That is all where no wrap bit is needed.

Where R must be a number and not a residue modulo 2**k, k = open_bits − s: let R₀ come from r₀ + 2**(open_bits − 2 − d)
in addition, and add only the top d + 1 bits of R₀ and R₁, d = 1: their sum's upper bits are the wrap w, its bit d is
m, and ρ = R₀ + R₁ − 2**k·w − 2**(k−2−d). The carry that is ignored stays inside the guard band: T − ρ + c·m·2**k is
right for |y| < 2**(open_bits − 2)·(1 − 2**−d), but for the lowest 2**(s−1) of these values.
"""

from __future__ import annotations

import numpy as np

from autorep.mpc.ring import U64, reduce

GUARD = 1
HEADROOM = 1 - 2.0**-GUARD
ROUNDING = (-1, 2)
LEAST_BITS = 3  # of a lifted truncation: the top bit, the guard and the constant


def _half(shift: int, party: int) -> int:
    return 1 << (shift - 1) if shift and party == 0 else 0


def truncate(r: np.ndarray, party: int, open_bits: int, shift: int, bits: int) -> np.ndarray:
    """This party's share of R modulo 2**bits, where no wrap bit enters."""
    return reduce(reduce(r + U64(_half(shift, party)), open_bits) >> U64(shift), bits)


def guarded(r: np.ndarray, party: int, open_bits: int, shift: int) -> np.ndarray:
    """This party's own R_i, a number below 2**k, of a truncation that is lifted."""
    offset = _half(shift, party) + (1 << (open_bits - 2 - GUARD) if party == 0 else 0)
    return reduce(r + U64(offset), open_bits) >> U64(shift)


def guard_constant(party: int, power: int) -> np.uint64:
    """What this party subtracts from its share of ρ again."""
    return U64(1 << (power - 2 - GUARD) if party == 0 else 0)


def top_bits(own: np.ndarray, power: int) -> tuple[np.ndarray, np.ndarray]:
    """The highest and the second bit of R_i."""
    return (own >> U64(power - 1)) & U64(1), (own >> U64(power - 2)) & U64(1)
