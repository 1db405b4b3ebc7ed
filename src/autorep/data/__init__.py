"""Data sets by name, as uint8 tensors with the constants that normalise them.

dataset = load("digits")                        # embedded, needs no files
dataset = load("cifar10", "cifar-10-python.tar.gz")
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from autorep.data.specs import names, spec, title
from autorep.errors import ConfigError
from autorep.lazy import lazily
from autorep.settings import require

if TYPE_CHECKING:
    from autorep.data.augment import evaluation_batches, normalise, training_batch
    from autorep.data.dataset import Dataset, Images, Subset, TensorImages

__all__ = [
    "Dataset",
    "Images",
    "Subset",
    "TensorImages",
    "evaluation_batches",
    "load",
    "names",
    "normalise",
    "spec",
    "title",
    "training_batch",
]

__getattr__ = lazily(
    __name__,
    dict.fromkeys(("Dataset", "Images", "Subset", "TensorImages"), "autorep.data.dataset")
    | dict.fromkeys(("evaluation_batches", "normalise", "training_batch"), "autorep.data.augment"),
)


def load(name: str, path: str | Path | None = None, image_size: int | None = None) -> Dataset:
    """Read a data set; all but "digits" need `path`; `image_size` is for pictures in folders ("folder", "imagenet")."""
    read = getattr(importlib.import_module(f"autorep.data.{spec(name).module}"), name.replace("-", "_"))
    if name == "digits":
        return read()
    if path is None:
        raise ConfigError(f"data set {name!r} needs the place of its files: --data-path PATH")
    path = Path(path).expanduser()
    require(image_size is None or image_size >= 1, "image size", image_size, "at least 1")
    return read(path, image_size or spec(name).image_size) if name in ("folder", "imagenet") else read(path)
