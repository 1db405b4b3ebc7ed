"""What a name on the command line stands for: a network, a finished model, or a compiled program."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autorep.errors import CheckpointError, ConfigError
from autorep.settings import nearest, warn

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from autorep.modes import Program
    from autorep.training.compiled import SavedModel


def is_network(name: str) -> bool:
    """Whether a name is of an untrained network (the registry's, or one's own); else it is of a finished model.

    Raises ConfigError, with the nearest of both kinds, where it is neither.
    """
    from autorep import models, zoo

    if models.is_own(name) or name.partition("@")[0] in models.names():
        return True
    if name in zoo.names() or Path(name).exists():
        return False
    raise ConfigError(
        f"{name}: neither a network (one of your own is FILE.py:FUNCTION), nor in `autorep zoo`, nor a saved model or "
        f"run; {nearest(name, [*models.names(), *zoo.names()])}"
    )


def network(name: str, input_shape: tuple[int, ...] = ()) -> tuple[nn.Module, torch.Tensor]:
    """A torch module and a zero input for it."""
    import torch

    from autorep import models, zoo

    if is_network(name):
        spec = models.spec(name)
        shape = input_shape or (spec.channels, spec.image_size, spec.image_size)
        return models.create(name), torch.zeros(1, *shape)
    saved = zoo.load(name)
    return saved.model, torch.zeros(1, *(input_shape or saved.input_shape))


def sketch(
    network: str,
    image_size: int | None = None,
    relus: int | None = None,
    classes: int | None = None,
    lines: Collection[str] = (),
) -> Program:
    """A network by name with random weights and widths for assumed ranges, keeping `relus` ReLUs spread evenly."""
    import torch

    from autorep import models
    from autorep.bench.networks import KINDS, spread_
    from autorep.compiler.compile import sketch_program
    from autorep.replacement import replace_activations_

    spec = models.spec(network)
    size = spec.image_size if image_size is None else image_size
    model = models.create(network, classes, size).eval()
    example = torch.zeros(2, spec.channels, size, size)
    if relus is not None or lines:
        spread_(replace_activations_(model, example, kinds=KINDS), relus, lines=lines)
    return sketch_program(model, example)


def stored_program(name: str | Path) -> Program | None:
    """The owner's copy in a directory of `autorep compile` or its program/ part; None where the name is no such."""
    from autorep.modes import Program

    for folder in (Path(name), Path(name) / "program"):
        if (folder / "manifest.json").exists():
            return Program.load(folder)
    return None


def load_program(directory: Path) -> Program:
    """The same where nothing else will do."""
    found = stored_program(directory)
    if found is None:
        raise CheckpointError(
            f"{directory}: no program here; `autorep compile` writes one (OUT/program stays with the model's owner)"
        )
    return found


def program_of(name: str, data_path: Path | None = None) -> Program:
    """The program that a directory holds, or that a finished model compiles to."""
    if (program := stored_program(name)) is not None:
        return program
    from autorep import zoo
    from autorep.training.compiled import compile_saved

    saved = zoo.load(name)
    warn(f"compiling {saved.title} …")
    return compile_saved(saved, calibration_pixels(saved, None, data_path, 512))


def calibration_pixels(saved: SavedModel, data: str | None, path: Path | None, count: int) -> np.ndarray | None:
    """Training images of the model's data set, or None where they are not at hand but the model knows its ranges."""
    name = data or saved.info["data"]
    if path is None and name != "digits" and "ranges" in saved.info:
        return None
    return first_pixels(name, path, saved.input_shape[-1], count, "train")


def first_pixels(data: str, path: Path | None, size: int, count: int, part: Literal["train", "test"]) -> np.ndarray:
    """The first images of a data set, as float32 pixels in [0, 1]."""
    import torch

    from autorep.data import load

    images = getattr(load(data, path, size), part)
    if count < 1:
        raise ConfigError(f"--images {count}: give at least 1")
    return images.take(torch.arange(min(count, len(images)))).float().div(255).numpy()
