"""Images outside the published input range are refused before anything is shared, wherever a client begins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorep.errors import RangeError
from autorep.mpc.local import LocalPair
from autorep.program.ir import Program, encode, encode_input
from autorep.service.shares import split


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=8), st.integers(0, 20))
def test_exactly_the_values_outside_are_refused(values, frac):
    limits = (-0.5, 1.5)
    if all(limits[0] <= value <= limits[1] for value in values):
        np.testing.assert_array_equal(encode_input(np.array(values), frac, limits), encode(values, frac))
    else:
        with pytest.raises(RangeError, match=r"outside the range -0.5 to 1.5"):
            encode_input(np.array(values), frac, limits)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_without_a_published_range_the_ring_is_the_limit(value):
    with pytest.raises(RangeError, match="1 of 2 values"):
        encode_input(np.array([0.0, value]), 16, None)


def test_a_compiled_program_publishes_its_range_and_clients_keep_it(program: Program):
    """What calibration showed is taken; sixteen times as much is not, neither locally nor over HTTPS."""
    low, high = program.info["input_range"]
    image = np.full((1, *program.input.shape), (low + high) / 2)
    with LocalPair(program) as pair:
        pair.run(image)
        before = pair.ledger.total("online").sent
        with pytest.raises(RangeError, match="scale images as for training"):
            pair.run(image + 16 * (high - low))
        assert pair.ledger.total("online").sent == before
    split(image, program.input.frac, (low, high))
    with pytest.raises(RangeError, match="outside the range"):
        split(image + 16 * (high - low), program.input.frac, (low, high))
    open_ended = dataclasses.replace(program, info={})
    with LocalPair(open_ended) as pair:
        pair.run(image + 16 * (high - low))
