"""Random networks full of in-place calls and aliases: right, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, event, given, seed, settings
from hypothesis import strategies as st
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.compiler.guard import LARGEST_ROUNDING, ROUNDING
from autorep.errors import TraceError, UnsupportedOpError
from autorep.program.answer import split_outputs
from autorep.replacement import replace_activations_
from tests.compiler.random_styles import REFUSED, SHAPE, RandomStyle, random_styles
from tests.program.networks import CURVE, images

# A failing network is printed as its steps, short enough as it is: shrinking would export hundreds more.
COMMON = settings(
    deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.timeout(900)
@settings(COMMON, max_examples=80)
@given(random_styles())
def test_random_styles_are_right_or_refused(model):
    right_or_refused(model)


@pytest.mark.timeout(900)
@settings(COMMON, max_examples=20)
@given(random_styles(), st.integers(0, 2))
def test_random_styles_are_right_or_refused_after_replacement(model, first):
    replace_some(model, first)
    right_or_refused(model)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("piece", range(20))
def test_two_thousand_random_styles_are_right_or_refused(piece):
    """A hundred networks a piece, the same ones at every run, so that the pieces can be run apart.

    Ten at a time are compiled as one network of ten answers, which takes half the time; those with a step that must
    be refused alone.
    """

    @seed(piece)
    @settings(COMMON, max_examples=10, database=None)
    @given(st.lists(st.tuples(random_styles(), st.sampled_from([None, None, None, 0, 1, 2])), min_size=10, max_size=10))
    def check(networks: list[tuple[RandomStyle, int | None]]) -> None:
        together = []
        for model, first in networks:
            if first is not None:
                replace_some(model, first)
            if may_be_refused(model):
                right_or_refused(model)
            else:
                together.append(model)
        assert_all_right(together)

    check()


class Together(nn.Module):
    """Several networks that read the same images; each has an answer of its own."""

    def __init__(self, networks: Sequence[RandomStyle]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [network(x.clone()) for network in self.networks]


def assert_all_right(networks: Sequence[RandomStyle]) -> None:
    x = images(6, 1, SHAPE)
    program = compile_program(Together(networks), x)
    answers = split_outputs(program.info, program.run(x.numpy()))
    assert len(answers) == len(networks)
    for network, answer in zip(networks, answers.values()):
        assert_same(answer, network, x)


def may_be_refused(model: RandomStyle) -> bool:
    return any(step.name in REFUSED for step in model.steps)


def assert_same(answer: np.ndarray, model: RandomStyle, x: torch.Tensor) -> None:
    """float = torch to rounding; the norm of a channel that is constant multiplies torch's own, which float64 tells."""
    with torch.no_grad():
        expected = model(x.clone()).double().numpy()
        largest = max(1.0, np.abs(expected).max())
        if np.abs(answer - expected).max() <= 1e-5 * largest:
            return
        exact = copy.deepcopy(model).double()(x.double()).numpy()
    rounding = min(ROUNDING * np.abs(expected - exact).max(), LARGEST_ROUNDING * largest)
    np.testing.assert_allclose(answer, exact, rtol=0, atol=max(1e-5 * largest, rounding), err_msg=repr(model))


def right_or_refused(model: RandomStyle) -> None:
    """Only a step that has no private counterpart may be refused, by name."""
    x = images(6, 1, SHAPE)
    try:
        program = compile_program(model, x)
    except UnsupportedOpError:
        event("refused")
        if not may_be_refused(model):
            raise
        return
    event("right")
    assert_same(program.run(x.numpy()), model, x)


def replace_some(model: RandomStyle, first: int) -> None:
    """Replace the activations and every third of them by a quadratic; or be refused, and leave the model as it was."""
    x = images(6, 2, SHAPE)
    with torch.no_grad():
        before = model(x.clone())
    try:
        replacement = replace_activations_(model, x[:1])
    except TraceError:
        event("not replaced")
        replacement = None
    with torch.no_grad():
        torch.testing.assert_close(model(x.clone()), before, rtol=0, atol=1e-4)
    if replacement is not None:
        replacement.calibrate_(model, [x], curve=CURVE)
        for site in replacement.sites.values():
            site.mask.view(-1)[first::3] = 0
