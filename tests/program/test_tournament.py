"""The best few of many values, against sorting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorep.program.tournament import Tournament, tournament


def play(found: Tournament, values: list[int]) -> list[int]:
    """One match after the other."""
    values = list(values)
    for first, second in found.layers:
        assert len({*first.tolist(), *second.tolist()}) == 2 * len(first), "a place has one match a layer"
        for i, j in zip(first, second):
            values[i], values[j] = max(values[i], values[j]), min(values[i], values[j])
    return [values[place] for place in found.best]


@pytest.mark.parametrize("count", range(1, 11))
def test_every_pattern_of_zeros_and_ones_comes_out_sorted(count):
    """Which by Knuth's principle means that everything does."""
    for wanted in range(1, min(6, count) + 1):
        for values in itertools.product((0, 1), repeat=count):
            assert play(tournament(count, wanted), values) == sorted(values, reverse=True)[:wanted]


@given(st.lists(st.integers(), min_size=1, max_size=200), st.integers(1, 9))
def test_the_best_come_out_in_order(values, wanted):
    wanted = min(wanted, len(values))
    assert play(tournament(len(values), wanted), values) == sorted(values, reverse=True)[:wanted]


@pytest.mark.parametrize(("count", "wanted", "layers", "matches"), [(1, 1, 0, 0), (100, 1, 7, 99), (100, 5, 22, 529)])
def test_one_winner_is_a_knock_out_and_few_cost_few_more(count, wanted, layers, matches):
    found = tournament(count, wanted)
    assert (len(found.layers), found.matches) == (layers, matches)
    assert np.unique(found.best).size == wanted
