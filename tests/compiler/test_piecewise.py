"""The sigmoid of straight lines: its stated bound holds, alone and inside a fixed-point program."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.compiler.piecewise import spline
from autorep.program.ir import Activation

STATED_BOUND = 2e-3  # of the fixed-point sigmoid at 16 fractional bits, rounding included


def evaluate(lines, y):
    value = np.full_like(y, lines.offset * 2.0 ** -(lines.knot_frac + lines.slope_frac))
    for knot, slope in zip(lines.knots, lines.slopes):
        value += slope * 2.0**-lines.slope_frac * np.maximum(y - knot * 2.0**-lines.knot_frac, 0)
    return value


@pytest.mark.parametrize(("knot_frac", "slope_frac"), [(9, 7), (7, 7), (5, 7), (8, 8)])
def test_error_is_within_the_tolerance_everywhere(knot_frac, slope_frac):
    lines = spline("sigmoid", (), knot_frac, slope_frac)
    y = np.concatenate([np.linspace(-40, 40, 400_001), [-1e4, 1e4]])
    error = np.abs(evaluate(lines, y) - 1 / (1 + np.exp(-np.clip(y, -500, 500)))).max()
    assert error <= 1.501e-3
    assert abs(error - lines.error) < 1e-5


def test_lines_are_symmetric_and_flat_outside():
    lines = spline("sigmoid", (), 9, 7)
    y = np.linspace(0, 12, 1001)
    np.testing.assert_allclose(evaluate(lines, y) + evaluate(lines, -y), 1.0, atol=1e-12)
    assert sum(lines.slopes) == 0
    assert lines.error + lines.rounding <= STATED_BOUND


def test_fixed_point_sigmoid_stays_within_the_stated_bound():
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Sigmoid())
    nn.init.ones_(network[0].weight)
    y = torch.linspace(-14, 14, 20_001)[:, None]
    program = compile_program(network, y)
    gate = next(op for op in program.ops if isinstance(op, Activation))
    assert gate.function == "sigmoid"
    assert gate.frac == 16
    expected = torch.sigmoid(y.double()).numpy()
    np.testing.assert_allclose(program.run(y.numpy()), expected, atol=1e-6)
    assert np.abs(program.run(y.numpy(), "fixed") - expected).max() <= STATED_BOUND


def test_slopes_too_coarse_are_refused():
    with pytest.raises(ValueError, match="cannot follow"):
        spline("sigmoid", (), 9, 1)
