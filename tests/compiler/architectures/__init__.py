"""Well-known image classifiers in their ordinary structure, narrow and shallow: what users bring to the compiler."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from tests.compiler.architectures.branched import densenet, dla, googlenet, hrnet, inception, squeezenet
from tests.compiler.architectures.mobile import (
    efficientnet_b0,
    ghostnet,
    mnasnet,
    mobilenet_v2,
    mobilenet_v3,
    shufflenet_v2,
    xception,
)
from tests.compiler.architectures.residual import regnet_x, regnet_y, repvgg, res2net, resnet, resnet_deep, resnext, vgg

ARCHITECTURES: tuple[Callable[[], nn.Module], ...] = (
    resnet, resnet_deep, resnext, regnet_x, regnet_y, densenet, vgg, mobilenet_v2, mnasnet, squeezenet, inception,
    xception, repvgg, dla, shufflenet_v2, googlenet, mobilenet_v3, efficientnet_b0, res2net, ghostnet, hrnet,
)  # fmt: skip
