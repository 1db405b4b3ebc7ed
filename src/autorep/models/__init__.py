"""Networks by name: the paper's, small CIFAR ones, and a digits network for quick trials.

    model = create("resnet18", num_classes=100)

Parameter names follow the public checkpoints each network has, so those load without renaming.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from autorep.errors import ConfigError
from autorep.models.efficientnet import efficientnet_b2
from autorep.models.efficientnet_lite import efficientnet_lite0, efficientnet_lite2
from autorep.models.resnet import digits_net, resnet18, resnet20, resnet32, resnet56
from autorep.models.weights import load_weights_
from autorep.models.wide_resnet import wide_resnet22_8
from autorep.settings import nearest

__all__ = ["ModelSpec", "create", "load_weights_", "names", "size_options", "spec"]


@dataclass(frozen=True)
class ModelSpec:
    """How to build a network, and the input it was designed for.

    Attributes:
        build: called as build(num_classes, **options).
        channels, image_size: of the usual input.
        num_classes: of the usual data set.
    """

    build: Callable[..., nn.Module]
    channels: int
    image_size: int
    num_classes: int


REGISTRY: dict[str, ModelSpec] = {
    "digits_net": ModelSpec(digits_net, 1, 8, 10),
    "resnet18": ModelSpec(resnet18, 3, 32, 100),
    "resnet20": ModelSpec(resnet20, 3, 32, 10),
    "resnet32": ModelSpec(resnet32, 3, 32, 10),
    "resnet56": ModelSpec(resnet56, 3, 32, 10),
    "wide_resnet22_8": ModelSpec(wide_resnet22_8, 3, 32, 100),
    "efficientnet_b2": ModelSpec(efficientnet_b2, 3, 224, 1000),
    "efficientnet_lite0": ModelSpec(efficientnet_lite0, 3, 224, 1000),
    "efficientnet_lite2": ModelSpec(efficientnet_lite2, 3, 260, 1000),
}


def names() -> list[str]:
    """Every network that `create` knows."""
    return list(REGISTRY)


def spec(name: str) -> ModelSpec:
    """The registry's entry, or a ConfigError that suggests the nearest name."""
    if name not in REGISTRY:
        raise ConfigError(f"unknown model {name!r}; {nearest(name, names())}")
    return REGISTRY[name]


def create(name: str, num_classes: int | None = None, **options: Any) -> nn.Module:
    """Build a network with fresh weights; `options` are the builder's own (see each builder)."""
    entry = spec(name)
    try:
        return entry.build(entry.num_classes if num_classes is None else num_classes, **options)
    except TypeError as error:
        raise ConfigError(f"model {name!r} does not take these options: {error}") from None


def size_options(name: str, image_size: int) -> dict[str, int]:
    """Options that `create` needs for images of this size: EfficientNet-Lite pads by its image size."""
    return {"image_size": image_size} if name.startswith("efficientnet_lite") else {}
