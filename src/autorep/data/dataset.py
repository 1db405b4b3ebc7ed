"""What a data set is: images as uint8, labels, class names, and the constants that normalise it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch

from autorep.data.specs import spec
from autorep.errors import ConfigError, DataError
from autorep.preprocessing import Preprocessing


class Images(Protocol):
    """A labelled collection from which batches of uint8 images (N, C, H, W) are taken by index."""

    @property
    def labels(self) -> torch.Tensor: ...

    def __len__(self) -> int: ...

    def take(self, index: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class TensorImages:
    """Images held in memory."""

    images: torch.Tensor = field(repr=False)
    labels: torch.Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            found = f"{self.images.dtype} {tuple(self.images.shape)}"
            raise DataError(f"images are {found}; expected uint8 of shape (N, C, H, W)")
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self.images[index]


@dataclass(frozen=True, eq=False)
class Subset:
    """Some images of another collection."""

    source: Images
    index: torch.Tensor = field(repr=False)

    @property
    def labels(self) -> torch.Tensor:
        return self.source.labels[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self.source.take(self.index[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part, a test part, and what a network needs to know about them.

    Attributes:
        name: the name it was asked for by.
        train, test: labelled images.
        classes: class names, in label order.
        mean, std: per channel, of pixels scaled to [0, 1].
        pad: pixels that a random crop may shift an image by.
        flip: whether mirrored images are still valid images.
        kind, shorter: how a picture becomes such an image (see `autorep.preprocessing`).
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool
    kind: Literal["picture", "drawing"] = "picture"
    shorter: int = 0

    @property
    def preprocessing(self) -> Preprocessing:
        """How a picture becomes an image of this data set."""
        return Preprocessing(self.shape, self.kind, self.shorter)

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.train.take(torch.zeros(1, dtype=torch.long)).shape[1:]
        return channels, height, width

    def held_out(self, count: int, seed: int) -> tuple[Dataset, Images]:
        """This data set with `count` training images taken out, and those images; the same ones for a given seed."""
        if not 0 <= count < len(self.train):
            raise ConfigError(
                f"held_out = {count}: {self.name} has {len(self.train)} training images; "
                f"choose 0 to {len(self.train) - 1}"
            )
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))
        kept, out = order[count:].sort().values, order[:count].sort().values
        return replace(self, train=Subset(self.train, kept)), Subset(self.train, out)


def known(name: str, train: Images, test: Images, classes: tuple[str, ...] | None = None) -> Dataset:
    """A data set of the table in `specs`; `classes` where its files say them."""
    facts = spec(name)
    return Dataset(
        name, train, test, classes or facts.classes, facts.mean, facts.std, facts.pad, facts.flip, facts.kind
    )
