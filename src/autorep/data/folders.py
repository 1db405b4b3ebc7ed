"""Image folders: Tiny-ImageNet-200 (kept in memory) and ImageNet-style trees (decoded when asked for). Needs Pillow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autorep.data.dataset import Dataset, TensorImages, known
from autorep.errors import ConfigError, DataError

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
_THREADS = 8


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("image folders need Pillow: pip install pillow") from None
    return Image


def _decode(path: Path, side: int) -> np.ndarray:
    """One image as uint8 (3, side, side): shorter edge scaled to side·8/7, centre cut out."""
    image_module = _pillow()
    try:
        with image_module.open(path) as opened:
            image = opened.convert("RGB")
    except OSError as error:
        raise DataError(f"{path}: not a readable image ({error})") from None
    if image.size != (side, side):
        scale = (side * 8 / 7) / min(image.size)
        size = tuple(max(side, round(edge * scale)) for edge in image.size)
        image = image.resize(size, image_module.Resampling.BILINEAR)
        left, top = (size[0] - side) // 2, (size[1] - side) // 2
        image = image.crop((left, top, left + side, top + side))
    return np.asarray(image).transpose(2, 0, 1)


def _decode_all(paths: list[Path], side: int) -> torch.Tensor:
    with ThreadPoolExecutor(_THREADS) as pool:
        return torch.from_numpy(np.stack(list(pool.map(lambda path: _decode(path, side), paths))))


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Images decoded from files for each batch, by several threads."""

    files: list[Path] = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    side: int

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return _decode_all([self.files[i] for i in index.tolist()], self.side)


def tiny_imagenet(path: Path) -> Dataset:
    """Tiny-ImageNet-200: 200 classes at 64×64; the published validation part serves as test part."""
    train, classes = _class_tree(path / "train", 64)
    notes = path / "val" / "val_annotations.txt"
    if notes.is_file():
        test = _annotated(path / "val" / "images", notes, classes)
    else:
        test, test_classes = _class_tree(path / "val", 64)
        _same_classes(classes, test_classes, path)
    parts = [TensorImages(_decode_all(part.files, 64), part.labels) for part in (train, test)]
    return known("tiny-imagenet", parts[0], parts[1], classes)


def imagenet(path: Path, side: int) -> Dataset:
    """An ImageNet-style tree, train/<class>/* and val/<class>/*; images are decoded batch by batch."""
    train, classes = _class_tree(path / "train", side)
    test, test_classes = _class_tree(path / "val", side)
    _same_classes(classes, test_classes, path)
    return replace(known("imagenet", train, test, classes), pad=side // 8)


def _class_tree(folder: Path, side: int) -> tuple[FolderImages, tuple[str, ...]]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one sub-folder of images per class in it")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = [[p for p in sorted((folder / name).rglob("*")) if p.suffix.lower() in _SUFFIXES] for name in classes]
    empty = [name for name, found in zip(classes, files) if not found]
    if not classes or empty:
        what = f"no image in class {', '.join(empty[:4])}" if empty else "no class folder"
        raise DataError(f"{folder}: {what}; expected images ({', '.join(sorted(_SUFFIXES))}) in one folder per class")
    labels = torch.tensor([label for label, found in enumerate(files) for _ in found])
    return FolderImages([p for found in files for p in found], labels, side), tuple(classes)


def _annotated(folder: Path, notes: Path, classes: tuple[str, ...]) -> FolderImages:
    number = {name: i for i, name in enumerate(classes)}
    rows = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines() if line.strip()]
    wrong = [row for row in rows if len(row) < 2 or row[1] not in number]
    if wrong or not rows:
        raise DataError(f"{notes}: {wrong[0] if wrong else 'empty'}; expected lines of file name, tab, class name")
    missing = [row[0] for row in rows if not (folder / row[0]).is_file()]
    if missing:
        raise DataError(f"{folder}: {len(missing)} listed images are missing, the first is {missing[0]}")
    return FolderImages([folder / row[0] for row in rows], torch.tensor([number[row[1]] for row in rows]), 64)


def _same_classes(train: tuple[str, ...], test: tuple[str, ...], path: Path) -> None:
    if train != test:
        different = sorted(set(train) ^ set(test))
        raise DataError(f"{path}: train and val hold different classes, for example {', '.join(different[:4])}")
