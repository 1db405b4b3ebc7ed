"""Small networks that call activations in every way the library must find."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FunctionalBlock(nn.Module):
    """Two F.relu calls, a shortcut and an optional argument."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        y = self.second(F.relu(self.first(x)))
        y += x if shortcut is None else shortcut
        return F.relu(y, inplace=True)


class SharedBlock(nn.Module):
    """One nn.ReLU object called twice, and dropout that reads self.training."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.relu(self.norm(self.first(x))))
        y = F.dropout(y, 0.5, training=self.training)
        return self.relu(y + x)


class Everything(nn.Module):
    """Module, shared module, functional, method and in-place activations; a block used at two places."""

    def __init__(self, channels: int = 4, classes: int = 3) -> None:
        super().__init__()
        act = nn.ReLU()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), act, nn.Conv2d(channels, channels, 1), act)
        self.blocks = nn.Sequential(FunctionalBlock(channels), SharedBlock(channels))
        self.twice = SharedBlock(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        x = self.twice(self.twice(x))
        x = torch.relu(x - 0.1)
        x = (x - 0.1).relu()
        x = (x - 0.1).relu_()
        return self.head(F.relu6(x.mean((2, 3))))


# Names in execution order, and how many elements each has for 8×8 inputs and 4 channels.
EVERYTHING = {
    "stem.1": 256,
    "stem.3": 256,
    "blocks.0.relu": 256,
    "blocks.0.relu_2": 256,
    "blocks.1.relu": 256,
    "blocks.1.relu_2": 256,
    "twice_relu": 256,
    "twice_relu_2": 256,
    "twice_relu_3": 256,
    "twice_relu_4": 256,
    "relu": 256,
    "relu_2": 256,
    "relu_3": 256,
    "relu6": 4,
}


class Small(nn.Module):
    """Two convolutions with batch norm and a hidden layer: fast enough to train in a test."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.hidden = nn.Linear(8, 10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.features(x).mean((2, 3)))))


SMALL_TOTAL = 6 * 36 + 8 * 9 + 10  # on 6×6 inputs


class Branching(nn.Module):
    """A decision that depends on a tensor's values, which torch.fx cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3)
        self.relu = nn.ReLU()
        self.gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.relu(self.first(x)))


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return F.relu(x - 1)
        return x
