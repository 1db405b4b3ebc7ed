"""Accuracy of one model three ways (float, fixed point, private) on the same test images, image by image."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from autorep import data
from autorep.modes import Program
from autorep.mpc.local import LocalPair
from autorep.mpc.two_party.names import PreparationName
from autorep.program.agreement import agreement, rounding_error
from autorep.training.compiled import RANGE_IMAGES, SavedModel, compile_saved

ERROR_IMAGES, ERROR_RUNS = 50, 6  # what the documented rounding error is measured on


def private_accuracy(
    saved: SavedModel,
    dataset: data.Dataset,
    count: int,
    batch: int = 20,
    progress: bool = True,
    preparation: PreparationName = "dealer",
) -> dict[str, Any]:
    """Compile on training images, then run the first `count` test images in every mode."""
    count = min(count, len(dataset.test))
    images, labels = pixels(dataset.test, count), dataset.test.labels[:count].numpy()
    program = calibrated(saved, dataset)
    exact = program.run(images, mode="float")
    fixed = program.run(images, mode="fixed")
    parts = [images[start : start + batch] for start in range(0, count, batch)]
    with LocalPair(program, timeout=600.0, preparation=preparation) as pair:
        private = np.concatenate([pair.run(part) for part in tqdm(parts, "private queries", disable=not progress)])
    compared = agreement(fixed, private, rounding_error(program, images[:ERROR_IMAGES], ERROR_RUNS))
    return {
        "images": count,
        "relus": program.relu_count,
        "preparation": preparation,
        "accuracy": {
            mode: 100.0 * float((logits.argmax(1) == labels).mean())
            for mode, logits in (("float", exact), ("fixed", fixed), ("private", private))
        },
        "same_as_fixed": compared.equal,
        "ties": compared.images - compared.clear,
        "rounding_error": compared.error,
        "largest_difference": compared.largest,
        "holds": compared.holds,
        "agreement": asdict(compared),
    }


def calibrated(saved: SavedModel, dataset: data.Dataset) -> Program:
    """The model compiled on training images."""
    return compile_saved(saved, pixels(dataset.train, RANGE_IMAGES))


def pixels(images: data.Images, count: int) -> np.ndarray:
    """The first images, each value in [0, 1]."""
    return images.take(torch.arange(min(count, len(images)))).numpy() / 255.0
