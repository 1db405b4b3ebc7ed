"""Max pooling is counted as the compiled program will compare."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep.compiler.compile import sketch_program
from autorep.mpc.cost import cost
from autorep.replacement import count_relus, replace_activations_


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), kernel_size=(2, 1))
        return self.head(torch.max_pool2d(x, [4, 8]).flatten(1))


def pooled(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), *layers, nn.Flatten(), nn.Linear(features, 3))


NETWORKS = {
    "none": (pooled(nn.AvgPool2d(8), features=4), 0),
    "windows": (pooled(nn.MaxPool2d(2), features=64), 4 * 16 * 3),
    "overlapping": (pooled(nn.MaxPool2d(3, 2, 1), features=64), 4 * 16 * 8),
    "adaptive": (pooled(nn.AdaptiveMaxPool2d(2), features=16), 4 * 4 * 15),
    "functional": (Functional(), 4 * 32 * 1 + 4 * 1 * 31),
}


@pytest.mark.parametrize(("network", "expected"), NETWORKS.values(), ids=NETWORKS)
def test_max_pooling_is_counted_as_the_program_compares(network: nn.Module, expected: int) -> None:
    example = torch.rand(2, 3, 8, 8)
    counted = count_relus(network.eval(), example)
    assert sum(call["comparisons"] for call in counted["max_pool"]) == expected
    layers = cost(sketch_program(network, example)).layers
    assert sum(layer.comparisons for layer in layers if layer.operation == "MaxPool") == expected


def test_a_replacement_says_what_max_pooling_adds_to_its_budget() -> None:
    network, comparisons = NETWORKS["windows"]
    replacement = replace_activations_(network, torch.rand(2, 3, 8, 8), budget=10)
    assert f"max pooling makes {comparisons:,} comparisons more" in repr(replacement)
    assert "max_pool" not in replacement.describe()
