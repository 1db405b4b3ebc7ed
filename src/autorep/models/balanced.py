"""A small network with no more ReLUs than a budget, for CryptoNAS's question: does replacing beat training it?

CryptoNAS (Ghodsi et al., 2020) searches for networks of few ReLUs and finds two rules that need no search: no ReLU
after a shortcut, and as many ReLUs in every layer, so channels grow fourfold where the resolution is halved. This is
a residual network by these rules, nine blocks as in ResNet-20. It is trained from scratch, with all its ReLUs.
"""

from __future__ import annotations

from autorep.errors import ConfigError
from autorep.models.resnet import ResNet

BLOCKS = (3, 3, 3)
NARROWEST = 8  # channels of the first stage; rather than fewer, the stem halves the resolution


def balanced(num_classes: int, channels: int = 3, relus: int = 20_000, image_size: int = 32) -> ResNet:
    """The widest such network with at most `relus` ReLUs, a third of them in each stage."""
    widths, stride = shape(relus, image_size)
    return ResNet(widths, BLOCKS, num_classes, channels, stem_relu=False, stem_stride=stride, sum_relu=False)


def shape(relus: int, image_size: int) -> tuple[tuple[int, ...], int]:
    """Channels of the stages, and the stem's stride: 1, or 2 where the first stage would be too narrow."""
    for stride in (1, 2):
        sides = [-(-image_size // (stride << stage)) for stage in range(len(BLOCKS))]
        widths = tuple(
            relus // len(BLOCKS) // (blocks * side * side) for blocks, side in zip(BLOCKS, sides, strict=True)
        )
        if widths[0] >= NARROWEST:
            return widths, stride
    if not widths[0]:
        least = len(BLOCKS) * BLOCKS[0] * sides[0] ** 2
        raise ConfigError(f"balanced: {relus} ReLUs at {image_size} pixels; the smallest such network has {least}")
    return widths, 2
