"""Residual networks: ResNet-18 for 32- and 64-pixel images, CIFAR ResNet-20/32/56/110, and a digits network.

Names are torchvision's (conv1, bn1, layer1.0.conv1, layer2.0.downsample.0, fc), with one ReLU module per call site.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut, a ReLU after the first and, unless it is left out, after the sum."""

    expansion = 1

    def __init__(self, channels_in: int, channels: int, stride: int, sum_relu: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU() if sum_relu else nn.Identity()
        self.downsample = shortcut(channels_in, channels, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(x)) + kept)


def shortcut(channels_in: int, channels: int, stride: int) -> nn.Module | None:
    """A 1×1 convolution where a block changes the shape, None where its input can be added as it is."""
    if stride == 1 and channels_in == channels:
        return None
    return nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))


class ResNet(nn.Module):
    """A 3×3 stem at full resolution, stages of basic blocks that halve it, global average pooling, one linear layer.

    Args:
        widths: channels of each stage; the stem has those of the first.
        blocks: basic blocks of each stage.
        stem_relu: whether a ReLU follows the stem's batch norm.
        sum_relu: whether a ReLU follows the sum of every block.
        width: factor on all widths (DeepReDuce's alpha).
        stem_stride: of the first convolution; 2 halves the resolution of everything behind it (DeepReDuce's rho).
    """

    def __init__(
        self,
        widths: Sequence[int],
        blocks: Sequence[int],
        num_classes: int,
        channels: int,
        stem_relu: bool,
        width: float = 1.0,
        stem_stride: int = 1,
        sum_relu: bool = True,
    ) -> None:
        super().__init__()
        widths = [max(round(width * channels_out), 1) for channels_out in widths]
        self.conv1 = nn.Conv2d(channels, widths[0], 3, stem_stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU() if stem_relu else nn.Identity()
        self.stages = [f"layer{i + 1}" for i in range(len(widths))]
        before = widths[0]
        for i, (name, channels_out, count) in enumerate(zip(self.stages, widths, blocks, strict=True)):
            stage = nn.Sequential()
            for b in range(count):
                stage.append(BasicBlock(before, channels_out, 2 if i and not b else 1, sum_relu))
                before = channels_out
            self.add_module(name, stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, num_classes)
        initialise_(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def initialise_(model: nn.Module) -> None:
    """He initialisation of every convolution (fan out), as the residual networks' authors use it."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet18(num_classes: int, channels: int = 3, **shape: Any) -> ResNet:
    """ResNet-18 with a 3×3 stem and no ReLU after it: 491,520 ReLUs at 32×32, 1,966,080 at 64×64."""
    return ResNet((64, 128, 256, 512), (2, 2, 2, 2), num_classes, channels, stem_relu=False, **shape)


def resnet20(num_classes: int, channels: int = 3, **shape: Any) -> ResNet:
    """CIFAR ResNet-20: 188,416 ReLUs at 32×32."""
    return ResNet((16, 32, 64), (3, 3, 3), num_classes, channels, stem_relu=True, **shape)


def resnet32(num_classes: int, channels: int = 3, **shape: Any) -> ResNet:
    """CIFAR ResNet-32: 303,104 ReLUs at 32×32."""
    return ResNet((16, 32, 64), (5, 5, 5), num_classes, channels, stem_relu=True, **shape)


def resnet56(num_classes: int, channels: int = 3, **shape: Any) -> ResNet:
    """CIFAR ResNet-56: 532,480 ReLUs at 32×32."""
    return ResNet((16, 32, 64), (9, 9, 9), num_classes, channels, stem_relu=True, **shape)


def resnet110(num_classes: int, channels: int = 3, **shape: Any) -> ResNet:
    """CIFAR ResNet-110: 1,048,576 ReLUs at 32×32."""
    return ResNet((16, 32, 64), (18, 18, 18), num_classes, channels, stem_relu=True, **shape)


def digits_net(num_classes: int = 10, channels: int = 1, **shape: Any) -> ResNet:
    """A residual network small enough to train in seconds: 4,096 ReLUs in five layers at 8×8."""
    return ResNet((16, 32), (1, 1), num_classes, channels, stem_relu=True, **shape)
