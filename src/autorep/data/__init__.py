"""Data sets by name, as uint8 tensors with the constants that normalise them.

dataset = load("digits")                        # embedded, needs no files
dataset = load("cifar10", "cifar-10-python.tar.gz")
"""

from __future__ import annotations

from pathlib import Path

from autorep.data.augment import evaluation_batches, normalise, training_batch
from autorep.data.dataset import Dataset, Images, Subset, TensorImages
from autorep.errors import ConfigError
from autorep.settings import nearest

__all__ = [
    "Dataset",
    "Images",
    "Subset",
    "TensorImages",
    "evaluation_batches",
    "load",
    "names",
    "normalise",
    "training_batch",
]


def names() -> list[str]:
    """Every data set that `load` knows."""
    return ["digits", "cifar10", "cifar100", "tiny-imagenet", "imagenet"]


def load(name: str, path: str | Path | None = None, image_size: int | None = None) -> Dataset:
    """Read a data set; all but "digits" need `path`, `image_size` applies to "imagenet" only."""
    if name not in names():
        raise ConfigError(f"unknown data set {name!r}; {nearest(name, names())}")
    if name == "digits":
        from autorep.data.digits import digits

        return digits()
    if path is None:
        raise ConfigError(f"data set {name!r} needs the place of its files: --data-path PATH")
    from autorep.data import cifar, folders

    path = Path(path).expanduser()
    if name == "imagenet":
        return folders.imagenet(path, image_size or 224)
    return {"cifar10": cifar.cifar10, "cifar100": cifar.cifar100, "tiny-imagenet": folders.tiny_imagenet}[name](path)
