"""EfficientNet-B2 with torchvision's parameter names."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

# expansion, kernel, stride, channels, layers of EfficientNet-B0's seven stages
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def scaled_width(channels: int, factor: float) -> int:
    """Channels times `factor`, rounded to a multiple of 8 without losing more than a tenth."""
    value = channels * factor
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


def _activation(kind: Literal["silu", "relu"]) -> nn.Module:
    return nn.SiLU() if kind == "silu" else nn.ReLU()


def _conv_norm(
    channels_in: int, channels: int, kernel: int, stride: int, groups: int, activation: nn.Module | None
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
    ]
    return nn.Sequential(*layers, *([activation] if activation is not None else []))


class SqueezeExcitation(nn.Module):
    """Per-channel gate: sigmoid of two 1×1 layers on the pooled features."""

    def __init__(self, channels: int, squeezed: int, activation: nn.Module) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = activation
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x


class MBConv(nn.Module):
    """Expand, depthwise convolution, squeeze-excitation, project; a shortcut where the shape is kept."""

    def __init__(
        self,
        channels_in: int,
        channels: int,
        expansion: int,
        kernel: int,
        stride: int,
        kind: Literal["silu", "relu"],
    ) -> None:
        super().__init__()
        wide = channels_in * expansion
        self.block = nn.Sequential()
        if wide != channels_in:
            self.block.append(_conv_norm(channels_in, wide, 1, 1, 1, _activation(kind)))
        self.block.append(_conv_norm(wide, wide, kernel, stride, wide, _activation(kind)))
        self.block.append(SqueezeExcitation(wide, max(1, channels_in // 4), _activation(kind)))
        self.block.append(_conv_norm(wide, channels, 1, 1, 1, None))
        self.shortcut = stride == 1 and channels_in == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) + x if self.shortcut else self.block(x)


class EfficientNet(nn.Module):
    """Stem, seven stages of MBConv blocks, head, pooling, dropout, one linear layer."""

    def __init__(
        self, width: float, depth: float, dropout: float, num_classes: int, kind: Literal["silu", "relu"]
    ) -> None:
        super().__init__()
        before = scaled_width(32, width)
        self.features = nn.Sequential(_conv_norm(3, before, 3, 2, 1, _activation(kind)))
        for expansion, kernel, stride, base, layers in STAGES:
            channels, stage = scaled_width(base, width), nn.Sequential()
            for i in range(math.ceil(layers * depth)):
                stage.append(MBConv(before, channels, expansion, kernel, stride if i == 0 else 1, kind))
                before = channels
            self.features.append(stage)
        self.features.append(_conv_norm(before, 4 * before, 1, 1, 1, _activation(kind)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(4 * before, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def efficientnet_b2(num_classes: int, activation: Literal["silu", "relu"] = "silu") -> EfficientNet:
    """EfficientNet-B2; with activation="relu" it has 8,804,162 ReLUs in 69 layers at 224×224."""
    return EfficientNet(1.1, 1.2, 0.3, num_classes, activation)
