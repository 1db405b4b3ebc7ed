"""Random networks full of in-place calls and aliases: right, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from autorep.compiler.compile import compile_program
from autorep.errors import TraceError, UnsupportedOpError
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
@pytest.mark.timeout(4 * 3600)
@settings(COMMON, max_examples=2000)
@given(random_styles(), st.sampled_from([None, None, None, 0, 1, 2]))
def test_two_thousand_random_styles_are_right_or_refused(model, first):
    if first is not None:
        replace_some(model, first)
    right_or_refused(model)


def right_or_refused(model: RandomStyle) -> None:
    """float = torch to rounding; only a step that has no private counterpart may be refused, by name."""
    x = images(6, 1, SHAPE)
    with torch.no_grad():
        expected = model(x.clone()).double().numpy()
    try:
        program = compile_program(model, x)
    except UnsupportedOpError:
        event("refused")
        if not any(step.name in REFUSED for step in model.steps):
            raise
        return
    event("right")
    largest = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(program.run(x.numpy()), expected, rtol=0, atol=1e-5 * largest)


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
