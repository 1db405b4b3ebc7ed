"""Norms by statistics of the image: refused with what to do, because of the rounds they would take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autorep.compiler.compile import check, sketch_program
from autorep.mpc.operations import protocols
from tests.program.networks import images

CHANNELS, GROUPS = 8, 4


class ByHand(nn.Module):
    """A group norm of supported operations, with a sigmoid, which costs the same, where the inverse root stands."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(CHANNELS, 1, 1)), nn.Parameter(torch.rand(CHANNELS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(len(x), GROUPS, 1, -1)
        centred = groups - groups.mean(3, keepdim=True)
        scaled = centred * torch.sigmoid((centred * centred).sum(3, keepdim=True))
        return scaled.reshape(x.shape) * self.weight + self.bias


def network(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, CHANNELS, 3), nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 3), norm, nn.ReLU()]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 4)).eval()


def rounds(norm: nn.Module) -> int:
    program = sketch_program(network(norm), images(1))
    return sum(len(list(operation.rounds())) for operation in protocols(program))


def test_a_norm_by_statistics_of_the_image_would_take_eight_rounds():
    """Mean, centred values, inverse root and scaled values: four openings in a row of two rounds each."""
    assert rounds(ByHand()) == rounds(nn.BatchNorm2d(CHANNELS)) + 8


@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(GROUPS, CHANNELS),
        nn.LayerNorm([CHANNELS, 12, 12]),
        nn.InstanceNorm2d(CHANNELS),
        nn.RMSNorm([CHANNELS, 12, 12]),
    ],
)
def test_it_is_refused_with_what_to_do(norm):
    (problem,) = check(network(norm), images(1))
    assert problem.path == "3"
    assert "statistics of the image" in problem.advice
    assert "BatchNorm2d" in problem.advice
