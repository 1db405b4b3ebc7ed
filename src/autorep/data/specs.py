"""What is known about each data set by its name: what people call it, its images, its classes, how it is normalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autorep.errors import ConfigError
from autorep.settings import nearest

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class DataSpec:
    """One data set.

    Attributes:
        module: of this package; its function of the data set's name (- as _) reads it.
        image_size: rows and columns of an image.
        mean, std: per channel, of pixels scaled to [0, 1]; empty where they are measured when the files are read.
        pad: pixels that a random crop may shift an image by.
        flip: whether mirrored images are still valid images.
        classes: their names in label order; empty where the files say them.
        kind: whether a picture becomes such an image as a photograph or as a drawing (see `autorep.preprocessing`).
    """

    title: str
    module: str
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool = True
    classes: tuple[str, ...] = ()
    kind: Literal["picture", "drawing"] = "picture"


DATA_SETS: dict[str, DataSpec] = {
    "digits": DataSpec("digits", "digits", 8, (0.3053,), (0.3760,), 1, False, tuple("0123456789"), "drawing"),
    "folder": DataSpec("own pictures", "folders", 64, (), (), 8),
    "npz": DataSpec("own arrays", "arrays", 32, (), (), 4, False),
    "cifar10": DataSpec(
        "CIFAR-10", "cifar", 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), 4, classes=(*_CIFAR10.split(),)
    ),
    "cifar100": DataSpec(
        "CIFAR-100", "cifar", 32, (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761), 4, classes=(*_CIFAR100.split(),)
    ),
    "tiny-imagenet": DataSpec("Tiny-ImageNet", "folders", 64, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), 8),
    "imagenet": DataSpec("ImageNet", "folders", 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 28),
}


def names() -> list[str]:
    """Every data set that `autorep.data.load` knows."""
    return list(DATA_SETS)


def spec(name: str) -> DataSpec:
    """The table's entry, or a ConfigError that suggests the nearest name."""
    if name not in DATA_SETS:
        raise ConfigError(f"unknown data set {name!r}; {nearest(name, names())}")
    return DATA_SETS[name]


def title(name: str) -> str:
    """What people call a data set; one that is not in the table goes by its own name."""
    return DATA_SETS[name].title if name in DATA_SETS else name
