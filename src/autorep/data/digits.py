"""The embedded digits: 1,797 grey images of 8×8 pixels, a fixed fifth of them for testing."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from autorep.data.dataset import Dataset, TensorImages, known

_LEVELS = 16  # brightest of the 17 grey levels


def digits() -> Dataset:
    """Handwritten digits (origin and licence: digits.LICENSE.md beside this file); no files needed."""
    with resources.files("autorep.data").joinpath("digits.npz").open("rb") as file, np.load(file) as archive:
        raw, labels = archive["images"], archive["labels"].astype(np.int64)
    images = torch.from_numpy(((raw.astype(np.int32) * 255 + _LEVELS // 2) // _LEVELS).astype(np.uint8))[:, None]
    test = torch.arange(len(labels)) % 5 == 0
    parts = [TensorImages(images[rows], torch.from_numpy(labels)[rows]) for rows in (~test, test)]
    return known("digits", parts[0], parts[1])
