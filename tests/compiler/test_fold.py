"""Folding keeps the float meaning, whatever stands next to a scale and shift."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.program.ir import Affine
from tests.program.networks import images, settle_


class Between(nn.Module):
    """A batch norm between two given parts."""

    def __init__(self, before: nn.Module, after: nn.Module, channels: int) -> None:
        super().__init__()
        self.before, self.norm, self.after = before, nn.BatchNorm2d(channels), after

    def forward(self, x):
        return self.after(self.norm(self.before(x)))


def head(channels: int, side: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 3))


CASES = {
    "after a convolution": (nn.Conv2d(3, 4, 3, groups=1), nn.ReLU(), 4, 0),
    "before a padded grouped convolution": (nn.ReLU(), nn.Conv2d(3, 6, 3, padding=1, groups=3), 3, 0),
    "before a strided dilated convolution": (nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=2), 3, 0),
    "before an unpadded convolution": (nn.ReLU(), nn.Conv2d(3, 4, 2), 3, 0),
    "before a flat linear layer": (nn.ReLU(), head(3, 16), 3, 0),
    "after an average pool": (nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(2)), nn.ReLU(), 4, 1),
    "between activations": (nn.ReLU(), nn.ReLU(), 3, 1),
    "at the very end": (nn.Conv2d(3, 4, 1), nn.Identity(), 4, 0),
    "at the end, flattened": (nn.ReLU(), nn.Flatten(), 3, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_batch_norm_anywhere_equals_torch(case):
    before, after, channels, left = CASES[case]
    torch.manual_seed(0)
    network, x = Between(before, after, channels), images(8)
    settle_(network, x)
    program = compile_program(network, x)
    with torch.no_grad():
        expected = network(x).numpy()
    np.testing.assert_allclose(program.run(x.numpy()), expected, atol=1e-5)
    assert np.abs(program.run(x.numpy(), "fixed") - expected).max() < 2e-3
    assert sum(isinstance(op, Affine) for op in program.ops) == left


def test_a_pool_factor_folds_back_into_the_convolution_before():
    network, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.ReLU()), images(4)
    program = compile_program(network, x)
    assert [type(op).__name__ for op in program.ops] == ["Input", "Conv", "SumPool", "Activation"]
    with torch.no_grad():
        np.testing.assert_allclose(program.run(x.numpy()), network(x).numpy(), atol=1e-6)
