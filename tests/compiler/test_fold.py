"""Folding keeps the float meaning, whatever stands next to a scale and shift."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.mpc.cost import cost
from autorep.program.ir import Affine, Requantize
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


class Residual(nn.Module):
    """x → ReLU → (convolution, nothing) → sum → batch norm → what follows."""

    def __init__(self, after: nn.Module, skip: nn.Module) -> None:
        super().__init__()
        self.first, self.branch, self.skip = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), skip
        self.norm, self.after = nn.BatchNorm2d(4), after

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.after(self.norm(self.branch(x) + self.skip(x)))


@pytest.mark.parametrize("skip", [nn.Identity(), nn.Conv2d(4, 4, 1)], ids=["wire", "convolution"])
@pytest.mark.parametrize("after", [nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)], ids=["ReLU", "convolution"])
def test_a_scale_and_shift_behind_a_sum_is_not_opened_for(skip, after):
    torch.manual_seed(0)
    network, x = Residual(after, skip), images(8)
    settle_(network, x)
    program = compile_program(network, x)
    with torch.no_grad():
        expected = network(x).numpy()
    np.testing.assert_allclose(program.run(x.numpy()), expected, atol=1e-5)
    for mode, count in (("fixed", 8), ("secure", 1)):
        assert np.abs(program.run(x[:count].numpy(), mode) - expected[:count]).max() < 4e-3
    opened = sum(isinstance(op, Requantize) for op in program.ops)
    assert opened == isinstance(after, nn.Conv2d)  # what the convolution reads, no more
    assert cost(program).rounds == 5  # input, ReLU, and the second ReLU or the opening


def test_a_sum_that_others_read_as_it_is_keeps_its_scale_and_shift_apart():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.branch, self.norm = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            x = torch.relu(self.first(x))
            total = self.branch(x) + x
            return torch.relu(self.norm(total)) + total

    torch.manual_seed(0)
    network, x = Both(), images(8)
    settle_(network, x)
    program = compile_program(network, x)
    with torch.no_grad():
        np.testing.assert_allclose(program.run(x.numpy()), network(x).numpy(), atol=1e-5)
    assert np.abs(program.run(x.numpy(), "fixed") - program.run(x.numpy())).max() < 4e-3
