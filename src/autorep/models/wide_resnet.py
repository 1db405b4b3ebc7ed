"""Wide residual networks with pre-activation blocks."""

from __future__ import annotations

import torch
from torch import nn

from autorep.models.resnet import initialise_


class PreActivationBlock(nn.Module):
    """Batch norm and ReLU before each of two 3×3 convolutions; a changed shape is matched by a 1×1 convolution."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = self.relu1(self.bn1(x))
        shortcut = x if self.downsample is None else self.downsample(activated)
        return self.conv2(self.relu2(self.bn2(self.conv1(activated)))) + shortcut


class WideResNet(nn.Module):
    """A 16-channel stem, three stages `widen` times as wide as ResNet's, batch norm, pooling, one linear layer.

    The ReLU that usually stands before the pooling is left out, so ReLUs sit between convolutions only.
    """

    def __init__(self, depth: int, widen: int, num_classes: int, channels: int) -> None:
        super().__init__()
        widths = (16 * widen, 32 * widen, 64 * widen)
        self.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        before = 16
        for i, width in enumerate(widths):
            stage = nn.Sequential()
            for b in range((depth - 4) // 6):
                stage.append(PreActivationBlock(before, width, 2 if i and not b else 1))
                before = width
            self.add_module(f"layer{i + 1}", stage)
        self.bn1 = nn.BatchNorm2d(before)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, num_classes)
        initialise_(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))  # type: ignore[operator]  # added by name above
        return self.fc(torch.flatten(self.avgpool(self.bn1(x)), 1))


def wide_resnet22_8(num_classes: int, channels: int = 3) -> WideResNet:
    """WideResNet-22-8: 1,359,872 ReLUs at 32×32, 5,439,488 at 64×64."""
    return WideResNet(22, 8, num_classes, channels)
