"""Fits and checks of how cost grows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.bench.growth import FIGURES, Sample, count_relus, curves, line, verify
from autorep.bench.networks import build_program
from autorep.report import tables


@settings(max_examples=30, deadline=None)
@given(st.floats(-100, 100), st.floats(-100, 100))
def test_a_line_is_found_again(slope: float, intercept: float) -> None:
    fit = line([(x, slope * x + intercept) for x in (0.0, 1.0, 2.0, 5.0)])
    assert fit["slope"] == pytest.approx(slope, abs=1e-6)
    assert fit["intercept"] == pytest.approx(intercept, abs=1e-6)


def test_the_residual_is_a_share_of_the_range() -> None:
    assert line([(0, 0), (1, 1), (2, 0)])["largest_residual"] == pytest.approx(2 / 3)


def samples(offline: list[float], rounds: list[int]) -> list[Sample]:
    figures = [(x, count, 5.0, 2.0 + x, key) for x, (key, count) in enumerate(zip(offline, rounds))]
    return [dict(zip(("x", "rounds", *FIGURES), row)) for row in figures]


def test_bent_key_material_and_growing_rounds_are_noticed() -> None:
    good = verify("kept ReLUs", samples([1, 2, 3], [34, 34, 34]), bytes_linear=True)
    assert [check["holds"] for check in good] == [True, True, True]
    bent = verify("kept ReLUs", samples([1, 2, 4], [34, 34, 36]), bytes_linear=True)
    assert [check["holds"] for check in bent] == [False, True, False]


def test_curves_have_points_and_fits_for_every_figure() -> None:
    found = curves("batch", samples([1, 2, 3], [4, 4, 4]))
    assert [curve["y"] for curve in found] == ["online, ms", "sent per party, MB", "prepared ahead, MB"]
    assert tables.growth({"curves": found}).text().count("batch") == 3


def test_all_relus_of_a_program_are_counted() -> None:
    assert count_relus(build_program("digits_net", relus=10)) == 4096
