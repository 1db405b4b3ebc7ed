"""Truncations without a dealer at the edges of their headroom: every pair of masks of a small ring, by definition."""

from __future__ import annotations

import numpy as np
import pytest

from autorep.mpc.operations.requantize import lift
from autorep.mpc.ring import U64, reduce
from autorep.mpc.two_party import rounding
from autorep.program import ir

BITS, WORD = 9, 20  # of what is opened, and of the result


def errors(y: int, shift: int) -> np.ndarray:
    """t − (y >> shift) for every pair of mask shares, t as a query finds it from the truncation's R and m."""
    power = BITS - shift
    r0, r1 = (part.reshape(-1) for part in np.meshgrid(*[np.arange(1 << BITS, dtype=np.uint64)] * 2))
    own = [rounding.guarded(r, party, BITS, shift) for party, r in enumerate((r0, r1))]
    (top0, second0), (top1, second1) = (rounding.top_bits(each, power) for each in own)
    carry = second0 & second1
    m, total = top0 ^ top1 ^ carry, top0 + top1 + carry
    rho = own[0] + own[1] - ((total - m) << U64(power - 1)) - rounding.guard_constant(0, power)
    public, lifted = lift(reduce(U64((y + (1 << (BITS - 2))) % 2**64) + r0 + r1, BITS), BITS, shift)
    t = public - rho + ((lifted * m) << U64(power))
    return ir.signed(reduce(t - U64((y >> shift) % 2**64), WORD), WORD)


@pytest.mark.parametrize("shift", [1, 2, 4, 6])
def test_every_pair_of_masks_is_right_up_to_the_edges_of_the_headroom(shift: int) -> None:
    limit = int(rounding.HEADROOM * 2 ** (BITS - 2))
    lowest = (1 << (shift - 1)) - limit
    for y in (lowest, lowest + 1, -1, 0, 1, limit - 2, limit - 1):
        found = errors(y, shift)
        assert rounding.ROUNDING[0] <= found.min() <= found.max() <= rounding.ROUNDING[1]
    assert errors(lowest - 1, shift).max() > rounding.ROUNDING[1]


@pytest.mark.parametrize("y", [2 ** (BITS - 2) - 1, -(2 ** (BITS - 2)) + 1])
def test_beyond_the_headroom_some_masks_are_wrong(y: int) -> None:
    """The bound is no formality: values that a dealer's truncation would still lift are off by a whole ring."""
    assert np.abs(errors(y, 2)).max() > 1 << (BITS - 4)


def test_the_dither_of_a_truncation_has_no_bias() -> None:
    found = [errors(y, 4) for y in range(-16, 16)]
    exact = np.array([y / 16 - (y >> 4) for y in range(-16, 16)])
    assert abs(np.mean([part.mean() for part in found] - exact)) <= 0.5 / 16  # half a unit of y
