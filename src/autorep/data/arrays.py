"""Anybody's images as one .npz file: x_train, y_train, x_test, y_test, and perhaps classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from autorep.data.dataset import Dataset, TensorImages
from autorep.data.folders import moments
from autorep.errors import DataError

_NEEDED = ("x_train", "y_train", "x_test", "y_test")


def npz(path: Path) -> Dataset:
    """Images (N, H, W), (N, H, W, C) or (N, C, H, W) of uint8 levels; labels 0, 1, …; class names in label order."""
    train, test, names = read_parts(path)
    count = int(max(train.labels.max(), test.labels.max())) + 1
    classes = names or tuple(map(str, range(count)))
    if len(classes) < count:
        raise DataError(f"{path}: {len(classes)} class names, but labels up to {count - 1}")
    mean, std = moments(train.images)
    side = train.images.shape[-1]
    return Dataset("npz", train, test, classes, mean, std, pad=max(1, side // 8), flip=False)


def read_parts(path: Path, side: int | None = None) -> tuple[TensorImages, TensorImages, tuple[str, ...]]:
    """Training part, test part, and the class names if the file has any; with `side`, colour images of just that."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected an .npz file with {', '.join(_NEEDED)}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a readable .npz file ({error})") from None
    if missing := [name for name in _NEEDED if name not in found]:
        raise DataError(f"{path}: no array {', '.join(missing)}; it holds {', '.join(found) or 'nothing'}")
    train, test = (_part(found, part, path, side) for part in ("train", "test"))
    return train, test, tuple(map(str, found.get("classes", ())))


def _part(found: dict[str, np.ndarray], part: str, path: Path, side: int | None) -> TensorImages:
    given, labels = found[f"x_{part}"], found[f"y_{part}"].reshape(-1)
    images = given[:, None] if given.ndim == 3 else given
    if images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    fits = images.ndim == 4 and images.shape[1] in (1, 3) and (side is None or images.shape[1:] == (3, side, side))
    if images.dtype != np.uint8 or not fits or not len(images):
        wanted = "images, grey or colour" if side is None else f"(N, {side}, {side}, 3) or (N, 3, {side}, {side})"
        raise DataError(f"{path}: x_{part} is {given.dtype} {given.shape}; expected uint8 {wanted}")
    if labels.dtype.kind not in "iu" or len(labels) != len(images) or labels.min() < 0:
        raise DataError(f"{path}: y_{part} must hold {len(images)} whole numbers from 0, one for each image")
    return TensorImages(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64)))
