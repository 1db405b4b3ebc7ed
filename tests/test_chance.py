"""The limits of chance: what they let pass and what not; and that nothing else in a test depends on chance."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.chance import CHANCE, coincidences, fair, uneven

ROOT = Path(__file__).parents[1]

# Says which examples a property gets; with an argument, after another module of ours was loaded.
EXAMPLES = """
import importlib, sys
import tests.conftest
from hypothesis import given, settings, strategies as st
settings.load_profile("same examples")
for name in sys.argv[1:]:
    importlib.import_module(name)
@given(st.integers(), st.floats(), st.text(max_size=9))
def show(number, real, text):
    print(number, real, ascii(text))
show()
"""


@pytest.mark.parametrize("count", [64, 1000, 10**6])
def test_fair_bits_pass_and_constant_ones_do_not(count: int) -> None:
    assert fair(count // 2, count)
    assert fair(round(count / 2 + 3 * math.sqrt(count)), count), "six deviations"
    assert not fair(min(count, round(count / 2 + 5 * math.sqrt(count))), count), "ten deviations"
    assert not fair(count, count)
    assert not fair(0, count)
    assert fair(40, 40), "too few to judge"


def test_a_limit_of_fair_bits_is_as_unlikely_as_it_says() -> None:
    most = max(ones for ones in range(1001) if fair(ones, 1000))
    assert sum(math.comb(1000, ones) for ones in range(most + 1, 1001)) / 2**999 < CHANCE


def test_uniform_bytes_pass_and_slightly_lopsided_ones_do_not() -> None:
    values = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)
    assert not uneven(values)
    values[: 1 << 11] &= 0x7F  # the top bit is missing in one of 32
    assert "χ²" in uneven(np.repeat(values, 4))
    with pytest.raises(AssertionError, match="too few"):
        uneven(values[:100])


def test_coincidences_follow_the_number_of_pairs() -> None:
    assert coincidences(0, 44) == 0
    assert coincidences(1e3, 64) == 0
    assert coincidences(1e12, 44) < 12
    assert 1000 < coincidences(1000 * 2.0**44, 44) < 1400


def test_examples_do_not_depend_on_what_else_is_loaded() -> None:
    alone, beside = (
        subprocess.run(
            [sys.executable, "-c", EXAMPLES, *names], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        for names in ([], ["autorep.mpc.transport", "autorep.service.door"])
    )
    assert alone.count("\n") >= 100
    assert alone == beside


@pytest.mark.parametrize("again", [0, 1])
def test_every_test_begins_with_the_same_numbers(again: int) -> None:
    assert random.random() == random.Random(0).random()
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
    torch.rand(7 + again)
