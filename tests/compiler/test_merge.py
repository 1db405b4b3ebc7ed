"""Merged convolutions: the same numbers everywhere, borders included, with fewer openings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.mpc.cost import cost
from autorep.program.ir import Conv, Requantize


def pair(stride: int, channels: tuple[int, int, int], bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    into, middle, out = channels
    return nn.Sequential(
        nn.Conv2d(into, into, 1),
        nn.ReLU(),
        nn.Conv2d(into, middle, 3, stride, 1, bias=bias),
        nn.BatchNorm2d(middle),
        nn.Conv2d(middle, out, 3, 1, 1, bias=bias),
        nn.BatchNorm2d(out),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).eval()


@pytest.mark.parametrize("size", [(6, 6), (5, 7), (8, 5), (2, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_borders_and_all(stride, size):
    model = pair(stride, (2, 4, 4))
    x = torch.randn(12, 2, *size)
    model(x)
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    expected = model(x).detach().numpy()
    program = compile_program(model, [x])
    assert not any(isinstance(op, Requantize) for op in program.ops)
    assert any(op.kernel == (2 * stride + 3,) * 2 for op in program.ops if isinstance(op, Conv))
    np.testing.assert_allclose(program.run(x.numpy(), "float"), expected, rtol=1e-4, atol=1e-4)
    largest = np.abs(expected).max()
    assert np.abs(program.run(x.numpy(), "fixed") - expected).max() < 0.01 * largest
    assert np.abs(program.run(x[:1].numpy(), "secure") - expected[:1]).max() < 0.01 * largest
    assert cost(program).rounds == 5  # input, and two openings of each activation


def test_convolutions_that_would_cost_too_much_stay_apart():
    model = pair(1, (16, 2, 16))
    x = torch.randn(2, 16, 6, 6)
    model(x)
    program = compile_program(model, [x])
    assert any(isinstance(op, Requantize) for op in program.ops)


class AfterASum(nn.Module):
    """Two convolutions, to be merged, that read a residual sum which nothing has opened yet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.pair = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1))

    def forward(self, x):
        x = torch.relu(self.first(x))
        total = self.branch(x) + x
        return torch.relu(self.pair(total) + total)


def test_borders_read_what_is_opened_for_the_merged_convolution():
    torch.manual_seed(0)
    model, x = AfterASum().eval(), torch.randn(12, 3, 6, 6)
    program = compile_program(model, [x])
    expected = model(x).detach().numpy()
    np.testing.assert_allclose(program.run(x.numpy(), "float"), expected, rtol=1e-4, atol=1e-4)
    assert np.abs(program.run(x[:1].numpy(), "secure") - expected[:1]).max() < 0.01 * np.abs(expected).max()
    assert sum(isinstance(op, Requantize) for op in program.ops) == 1
    assert cost(program).rounds == 7  # input, two ReLUs, one opening of the sum
