"""The program of a saved model: calibrated on images, or by the ranges that were stored when it was finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from autorep.compiler.compile import compile_program, measure_ranges
from autorep.errors import ConfigError
from autorep.mpc.two_party.names import with_owners_word
from autorep.program.ir import Program

if TYPE_CHECKING:
    from autorep.training.saved import SavedModel

RANGE_IMAGES = 512  # training images that the ranges stored with a model are measured on
_BATCH = 64


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
