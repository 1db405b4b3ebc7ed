"""A finished model, and its program: calibrated on images, or by the ranges that were stored when it was finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autorep import models
from autorep.compiler.compile import compile_program, measure_ranges
from autorep.data import title as data_title
from autorep.errors import CheckpointError, ConfigError
from autorep.modes import Program
from autorep.mpc.two_party.names import with_owners_word
from autorep.preprocessing import Preprocessing
from autorep.replacement import Replacement

RANGE_IMAGES = 512  # training images that the ranges stored with a model are measured on
_BATCH = 64


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A model as loaded, in evaluation mode. Called with pictures, it answers with logits, as its `program` does.

    Attributes:
        model: the network, activations replaced if they were when it was saved; takes normalised tensors.
        replacement: handle on them, or None for an all-ReLU baseline.
        info: model name, classes, input shape, normalisation (mean and std of pixels in [0, 1]), accuracies, …
    """

    model: nn.Module
    replacement: Replacement | None
    info: dict[str, Any]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.info["input_shape"]
        return channels, height, width

    @property
    def preprocessing(self) -> Preprocessing:
        """How a picture becomes this model's input."""
        found = Preprocessing.of(self.info, self.input_shape)
        if found is None:
            raise CheckpointError(f"{self.title}: this model's description does not say how pictures are prepared")
        return found

    def __repr__(self) -> str:
        return f"<SavedModel {self.title}>"

    @cached_property
    def program(self) -> Program:
        """The network compiled for two servers, by the ranges that are stored with it."""
        return compile_saved(self)

    @torch.no_grad()
    def __call__(self, images: Any) -> Tensor:
        """Logits for pixels (uint8 levels or floats in [0, 1], tensor or array), or for picture files."""
        if isinstance(images, Tensor):
            images = images.detach().cpu().numpy()
        pixels = torch.from_numpy(self.preprocessing.batch(images))
        mean, std = (torch.tensor(self.info[name], dtype=pixels.dtype).view(-1, 1, 1) for name in ("mean", "std"))
        parameter = next(self.model.parameters())
        return self.model(((pixels - mean) / std).to(parameter.device, parameter.dtype))

    @property
    def title(self) -> str:
        """A name for people: network, data set, ReLUs kept."""
        title = f"{models.title(self.info['model'])} on {data_title(self.info['data'])}"
        return title if self.replacement is None else f"{title}, {self.replacement.count():,} ReLUs kept"


def compile_saved(
    saved: SavedModel,
    pixels: np.ndarray | None = None,
    margin: float = 4.0,
    outliers: float = 0.0,
    samples: Sequence[str] = (),
) -> Program:
    """The program of a saved model, calibrated on `pixels`; without any, by the ranges that were stored with it."""
    ranges = saved.info.get("ranges") if pixels is None else None
    if pixels is None and ranges is None:
        raise ConfigError(
            f"{saved.title}: no ranges are stored with this model; give images to calibrate on with --data-path, or "
            "store its ranges once with `autorep calibrate`"
        )
    program = compile_program(
        saved.model,
        _batches(_stand_ins(saved) if pixels is None else pixels),
        name=saved.title,
        class_names=saved.info.get("classes"),
        normalize=(saved.info["mean"], saved.info["std"]),
        margin=margin,
        outliers=outliers,
        ranges=ranges,
        info={"preprocessing": saved.preprocessing.facts(), "samples": list(samples)},
    )
    return with_owners_word(program)


def ranges_of(saved: SavedModel, pixels: np.ndarray) -> dict:
    """The ranges to store with a model, after it has been compiled on the same images: what cannot be is refused."""
    compile_saved(saved, pixels)
    return measure_ranges(saved.model, _batches(pixels), (saved.info["mean"], saved.info["std"]))


def _batches(pixels: np.ndarray) -> list[np.ndarray]:
    return [pixels[start : start + _BATCH] for start in range(0, len(pixels), _BATCH)]


def _stand_ins(saved: SavedModel) -> np.ndarray:
    """A few harmless images, near the data set's mean, to check a program with."""
    mean, std = (np.array(saved.info[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    noise = np.random.default_rng(0).standard_normal((4, *saved.input_shape))
    return np.clip(mean + 0.3 * std * noise, 0, 1).astype(np.float32)
