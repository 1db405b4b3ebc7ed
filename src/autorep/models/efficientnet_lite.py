"""EfficientNet-Lite 0 and 2: ReLU6, no squeeze-excitation, names of the published ReLU6 weights.

Inputs are normalised as (pixel − 127) / 128. Strided convolutions pad as TensorFlow does ("SAME": the odd column and
row go to the right and below), so padding depends on the image size the network is built for.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from autorep.models.efficientnet import STAGES, scaled_width


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class SamePadConv2d(nn.Conv2d):
    """A bias-free convolution with TensorFlow's "SAME" padding for a fixed input side.

    Even padding is the convolution's own; an odd one is done by `pad`, a module without parameters.
    """

    def __init__(
        self, channels_in: int, channels: int, kernel: int, side: int, stride: int = 1, groups: int = 1
    ) -> None:
        total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
        own, odd = total // 2, total % 2
        super().__init__(channels_in, channels, kernel, stride, 0 if odd else own, groups=groups, bias=False)
        self.pad = nn.ZeroPad2d((own, own + 1, own, own + 1)) if odd else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.pad(x))


class LiteBlock(nn.Module):
    """Expand, depthwise convolution, project; a shortcut where the shape is kept."""

    def __init__(self, channels_in: int, channels: int, expansion: int, kernel: int, stride: int, side: int) -> None:
        super().__init__()
        wide = channels_in * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = nn.Conv2d(channels_in, wide, 1, bias=False)
            self._bn0 = _norm(wide)
            self._relu0 = nn.ReLU6()
        self._depthwise_conv = SamePadConv2d(wide, wide, kernel, side, stride, wide)
        self._bn1 = _norm(wide)
        self._relu1 = nn.ReLU6()
        self._project_conv = nn.Conv2d(wide, channels, 1, bias=False)
        self._bn2 = _norm(channels)
        self.shortcut = stride == 1 and channels_in == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._relu0(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._relu1(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return y + x if self.shortcut else y


class EfficientNetLite(nn.Module):
    """Stem of 32 and head of 1,280 channels whatever the width; the first and last stage are never repeated more."""

    def __init__(self, width: float, depth: float, dropout: float, num_classes: int, image_size: int) -> None:
        super().__init__()
        side = image_size
        self._conv_stem = SamePadConv2d(3, 32, 3, side, 2)
        self._bn0 = _norm(32)
        self._relu0 = nn.ReLU6()
        side, before, blocks = math.ceil(side / 2), 32, []
        for i, (expansion, kernel, stride, base, layers) in enumerate(STAGES):
            channels = scaled_width(base, width)
            for b in range(layers if i in (0, len(STAGES) - 1) else math.ceil(layers * depth)):
                blocks.append(LiteBlock(before, channels, expansion, kernel, 1 if b else stride, side))
                side, before = math.ceil(side / (1 if b else stride)), channels
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(before, 1280, 1, bias=False)
        self._bn1 = _norm(1280)
        self._relu1 = nn.ReLU6()
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._dropout = nn.Dropout(dropout)
        self._fc = nn.Linear(1280, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._blocks(self._relu0(self._bn0(self._conv_stem(x))))
        x = self._avg_pooling(self._relu1(self._bn1(self._conv_head(x))))
        return self._fc(self._dropout(torch.flatten(x, 1)))


def efficientnet_lite0(num_classes: int, image_size: int = 224) -> EfficientNetLite:
    """EfficientNet-Lite0 (ReLU6)."""
    return EfficientNetLite(1.0, 1.0, 0.2, num_classes, image_size)


def efficientnet_lite2(num_classes: int, image_size: int = 260) -> EfficientNetLite:
    """EfficientNet-Lite2 (ReLU6)."""
    return EfficientNetLite(1.1, 1.2, 0.3, num_classes, image_size)
