"""The bound of the rounding error: exact for a linear layer, never exceeded by any network, and not vacuous."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.program.fixed import NearestRounding, SeededRounding, run_fixed
from autorep.program.ir import decode
from autorep.program.rounding import DEVIATIONS, rounding_bound
from tests.program.networks import BLOCKS, Network, images, mask_


def off(program, x: np.ndarray, runs: int = 4) -> np.ndarray:
    """Largest distance between float and some fixed runs, by answer."""
    exact = program.run(x)
    roundings = (NearestRounding(), *(SeededRounding(1 + run) for run in range(runs)))
    return np.max([np.abs(run_fixed(program, x, rounding) - exact) for rounding in roundings], axis=0)


def test_of_a_linear_layer_it_is_what_one_computes_by_hand():
    """Only the image is rounded anew: σ = u/2·√Σw². The weights' own rounding moves answers by (w' − w)·x."""
    torch.manual_seed(0)
    x = torch.randn(6, 12)
    program = compile_program(nn.Linear(12, 3), x)
    layer, x = program.output, x.numpy().astype(np.float64)
    kept, given = decode(program.encoded(layer, "weight"), 64, layer.weight_frac), program.parameters
    moved = np.abs(x @ (kept - given[f"{layer.name}.weight"]).T)
    sigma = 2.0**-program.input.frac / 2 * np.sqrt(np.square(kept).sum(axis=1))
    bound = rounding_bound(program, x)
    assert (bound >= moved + 0.4 * DEVIATIONS * sigma).all()
    assert (bound <= moved + 3 * DEVIATIONS * sigma.max() + 1e-7).all()
    assert (off(program, x) <= bound).all()


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(BLOCKS), min_size=0, max_size=2), st.sampled_from([(1.0,), (0.5,), (0.0,)]))
def test_no_network_goes_beyond_it(blocks, shares):
    network, x = Network(["conv", *blocks]), images(6)
    mask_(network, shares)
    program = compile_program(network, x)
    found, bound = off(program, x.numpy()), rounding_bound(program, x.numpy())
    assert (found <= bound).all()
    assert bound.max() < 40 * found.max()


def test_signs_have_none():
    class Signs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.first(x).sign())

    x = torch.randn(8, 4)
    program = compile_program(Signs(), x)
    assert rounding_bound(program, x.numpy()) is None
    assert program.info["fixed_bound"] is None
    assert program.info["fixed_error"] == pytest.approx(0, abs=0.2)
