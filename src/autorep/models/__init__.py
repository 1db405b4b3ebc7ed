"""Networks by name: the paper's, small CIFAR ones, and a digits network for quick trials.

    model = create("resnet18", num_classes=100)
    model = create("resnet20@width=0.5,stem_stride=2")     # options of its builder are part of a name
    model = create("mynet.py:make", num_classes=3)         # one's own: FUNCTION of FILE.py, see own.py

Parameter names follow the public checkpoints each network has, so those load without renaming. The table below is all
that is known about a network by its name; torch is imported when one is built.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from autorep.errors import ConfigError
from autorep.lazy import lazily
from autorep.settings import nearest, require

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from autorep.models.weights import load_weights_

__all__ = ["ModelSpec", "create", "is_own", "load_weights_", "names", "spec", "title"]


@dataclass(frozen=True)
class ModelSpec:
    """A network: what people call it, what builds it, and the input it was designed for.

    Attributes:
        module: of this package; its function of the network's name is called as build(num_classes, **options).
        channels, image_size: of the usual input.
        num_classes: of the usual data set.
        stages: modules after which the resolution or the width changes, in order; features are compared there.
        sized: whether the image size is an option of the builder (EfficientNet-Lite pads by it).
    """

    title: str
    module: str
    channels: int
    image_size: int
    num_classes: int
    stages: tuple[str, ...] = ()
    sized: bool = False


def _layers(count: int) -> tuple[str, ...]:
    return tuple(f"layer{number}" for number in range(1, count + 1))


REGISTRY: dict[str, ModelSpec] = {
    "digits_net": ModelSpec("digits network", "resnet", 1, 8, 10, _layers(2)),
    "resnet18": ModelSpec("ResNet-18", "resnet", 3, 32, 100, _layers(4)),
    "resnet20": ModelSpec("ResNet-20", "resnet", 3, 32, 10, _layers(3)),
    "resnet32": ModelSpec("ResNet-32", "resnet", 3, 32, 10, _layers(3)),
    "resnet56": ModelSpec("ResNet-56", "resnet", 3, 32, 10, _layers(3)),
    "resnet110": ModelSpec("ResNet-110", "resnet", 3, 32, 10, _layers(3)),
    "imagenet_resnet18": ModelSpec("ImageNet ResNet-18", "imagenet_resnet", 3, 224, 1000, _layers(4)),
    "imagenet_resnet34": ModelSpec("ImageNet ResNet-34", "imagenet_resnet", 3, 224, 1000, _layers(4)),
    "imagenet_resnet50": ModelSpec("ImageNet ResNet-50", "imagenet_resnet", 3, 224, 1000, _layers(4)),
    "wide_resnet22_8": ModelSpec("WideResNet-22-8", "wide_resnet", 3, 32, 100, _layers(3)),
    "balanced": ModelSpec("ReLU-balanced network", "balanced", 3, 32, 10, _layers(3), sized=True),
    "binary_digits": ModelSpec("binary digits network", "binary", 1, 8, 10),
    "binary_cifar": ModelSpec("binary CIFAR network (BC1)", "binary", 3, 32, 10),
    "efficientnet_b2": ModelSpec(
        "EfficientNet-B2", "efficientnet", 3, 224, 1000, tuple(f"features.{n}" for n in range(9))
    ),
    "efficientnet_lite0": ModelSpec("EfficientNet-Lite0", "efficientnet_lite", 3, 224, 1000, sized=True),
    "efficientnet_lite2": ModelSpec("EfficientNet-Lite2", "efficientnet_lite", 3, 260, 1000, sized=True),
}

__getattr__ = lazily(__name__, {"load_weights_": "autorep.models.weights"})


def names() -> list[str]:
    """Every network that `create` knows."""
    return list(REGISTRY)


def is_own(name: str) -> bool:
    """Whether a name says where one's own network is: FILE.py:FUNCTION, FILE.pt2 (`torch.export.save`), FILE.onnx."""
    return ".py:" in name or name.endswith((".pt2", ".onnx"))


def spec(name: str) -> ModelSpec:
    """The registry's entry, or what can be read off a network of one's own; a ConfigError suggests the nearest name."""
    if is_own(name):
        from autorep.models import own

        return ModelSpec(title(name), "own", *own.facts(name))
    plain, options = _parsed(name)
    if plain not in REGISTRY:
        raise ConfigError(
            f"unknown model {plain!r}; {nearest(plain, names())}, or FILE.py:FUNCTION for one of your own"
        )
    entry = REGISTRY[plain]
    return dataclasses.replace(entry, title=title(name), channels=int(options.get("channels", entry.channels)))


def title(name: str) -> str:
    """What people call a network; one that is not in the registry goes by its own name."""
    plain, _, options = name.partition("@")
    if plain in REGISTRY:
        return ", ".join([REGISTRY[plain].title, *options.replace("_", " ").replace("=", " ").split(",")]).rstrip(", ")
    file, mark, function = name.rpartition(".py:")
    return f"{PurePath(file).name}.{function}" if mark else name


def create(
    name: str,
    num_classes: int | None = None,
    image_size: int | None = None,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    **options: Any,
) -> nn.Module:
    """Build a network, with fresh weights unless some are given.

    Args:
        num_classes: None takes those of the network's usual data set.
        image_size: rows and columns of the input; most networks take any.
        weights: a checkpoint file or a state dict. When it was trained for another number of classes, its last layer is
            left out and the network's own is fresh; everything else must fit.
        options: the builder's own (see each builder), beside those that the name itself gives after an @.
    """
    require(num_classes is None or num_classes >= 1, "number of classes", num_classes, "at least 1")
    require(image_size is None or image_size >= 1, "image size", image_size, "at least 1")
    model = _built(name, num_classes, image_size, options)
    if weights is not None:
        from autorep.models.weights import load_weights_

        load_weights_(model, weights, new_head=True)
    return model


def _built(name: str, num_classes: int | None, image_size: int | None, options: dict[str, Any]) -> nn.Module:
    if is_own(name):
        from autorep.models import own

        return own.build(name, num_classes)
    entry = spec(name)
    plain, named = _parsed(name)
    options = {**named, **options}
    if entry.sized and image_size is not None:
        options["image_size"] = image_size
    build = getattr(importlib.import_module(f"autorep.models.{entry.module}"), plain)
    try:
        return build(entry.num_classes if num_classes is None else num_classes, **options)
    except TypeError as error:
        raise ConfigError(f"model {name!r} does not take these options: {error}") from None


def _parsed(name: str) -> tuple[str, dict[str, int | float]]:
    """The registry's name and the options given after it: NAME@OPTION=NUMBER,OPTION=NUMBER."""
    plain, _, text = name.partition("@")
    options: dict[str, int | float] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        try:
            options[key] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            raise ConfigError(f"model {name!r}: {part!r} is not OPTION=NUMBER, as in resnet20@width=0.5") from None
    return plain, options
