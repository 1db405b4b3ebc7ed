"""ResNets for 224-pixel photographs: a 7×7 stem, a max pool, basic blocks or bottlenecks.

Parameter names and shapes are torchvision's, so its checkpoints load as they are:

    model = create("imagenet_resnet50", weights="resnet50.pth")             # the 1000 classes it was trained on
    model = create("imagenet_resnet50", 3, weights="resnet50.pth")          # a fresh head for 3 classes of one's own
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from autorep.models.resnet import BasicBlock, initialise_, shortcut

WIDTHS = (64, 128, 256, 512)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions around a shortcut, the last four times as wide; the 3×3 one has the stride."""

    expansion = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        wide = self.expansion * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(channels, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu3 = nn.ReLU()
        self.downsample = shortcut(channels_in, wide, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.bn2(self.conv2(x)))
        return self.relu3(self.bn3(self.conv3(x)) + kept)


class ImageNetResNet(nn.Module):
    """The stem quarters the resolution, stages 2 to 4 halve it again each."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], blocks: Sequence[int], num_classes: int, channels: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.stages = [f"layer{i + 1}" for i in range(len(blocks))]
        before = WIDTHS[0]
        for i, (name, width, count) in enumerate(zip(self.stages, WIDTHS, blocks, strict=True)):
            stage = nn.Sequential()
            for b in range(count):
                stage.append(block(before, width, 2 if i and not b else 1))
                before = width * block.expansion
            self.add_module(name, stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, num_classes)
        initialise_(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def imagenet_resnet18(num_classes: int, channels: int = 3) -> ImageNetResNet:
    """2,308,096 ReLUs at 224×224."""
    return ImageNetResNet(BasicBlock, (2, 2, 2, 2), num_classes, channels)


def imagenet_resnet34(num_classes: int, channels: int = 3) -> ImageNetResNet:
    """3,562,496 ReLUs at 224×224."""
    return ImageNetResNet(BasicBlock, (3, 4, 6, 3), num_classes, channels)


def imagenet_resnet50(num_classes: int, channels: int = 3) -> ImageNetResNet:
    """9,608,704 ReLUs at 224×224."""
    return ImageNetResNet(Bottleneck, (3, 4, 6, 3), num_classes, channels)
