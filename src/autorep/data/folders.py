"""Folders of pictures: anybody's own, Tiny-ImageNet-200 (both in memory), ImageNet (decoded when asked for)."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from autorep.data.dataset import Dataset, TensorImages, known
from autorep.errors import DataError
from autorep.preprocessing import SUFFIXES, Preprocessing

_THREADS = 8


def _decode_all(paths: list[Path], preprocessing: Preprocessing) -> torch.Tensor:
    """Pictures as uint8 (N, 3, side, side), read by several threads."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return torch.from_numpy(np.stack(list(pool.map(preprocessing.levels, paths))))


def _cut(side: int, shorter: int = 0) -> Preprocessing:
    return Preprocessing((3, side, side), "picture", shorter)


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Images decoded from files for each batch, by several threads."""

    files: list[Path] = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    preprocessing: Preprocessing

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return _decode_all([self.files[i] for i in index.tolist()], self.preprocessing)

    def part(self, index: torch.Tensor) -> FolderImages:
        """Some of them."""
        return FolderImages([self.files[i] for i in index.tolist()], self.labels[index], self.preprocessing)


def tiny_imagenet(path: Path) -> Dataset:
    """Tiny-ImageNet-200: 200 classes at 64×64; the published validation part serves as test part."""
    train, classes = _class_tree(path / "train", _cut(64))
    notes = path / "val" / "val_annotations.txt"
    if notes.is_file():
        test = _annotated(path / "val" / "images", notes, classes)
    else:
        test, test_classes = _class_tree(path / "val", _cut(64))
        _same_classes(classes, test_classes, path)
    parts = [TensorImages(_decode_all(part.files, _cut(64)), part.labels) for part in (train, test)]
    return known("tiny-imagenet", parts[0], parts[1], classes)


def imagenet(path: Path, side: int) -> Dataset:
    """An ImageNet-style tree, train/<class>/* and val/<class>/*; images are decoded batch by batch."""
    shorter = round(side * 8 / 7)
    train, classes = _class_tree(path / "train", _cut(side, shorter))
    test, test_classes = _class_tree(path / "val", _cut(side, shorter))
    _same_classes(classes, test_classes, path)
    return replace(known("imagenet", train, test, classes), pad=side // 8, shorter=shorter)


def folder(path: Path, side: int) -> Dataset:
    """Anybody's pictures, one sub-folder a class, as colour images of `side`×`side`.

    With `train/` and `val/` (or `test/`) inside, those are the two parts. Otherwise every fifth picture, chosen by a
    hash of its name, is set apart for testing: the choice stays the same when pictures are added.
    """
    cut = _cut(side)
    if (path / "train").is_dir():
        train, classes = _class_tree(path / "train", cut)
        other = next((path / name for name in ("val", "test") if (path / name).is_dir()), path / "val")
        test, test_classes = _class_tree(other, cut)
        _same_classes(classes, test_classes, path)
    else:
        everything, classes = _class_tree(path, cut)
        chosen = torch.tensor([_for_testing(file.relative_to(path)) for file in everything.files])
        if chosen.all() or not chosen.any():
            raise DataError(f"{path}: {len(everything)} pictures are too few to split; put them into train/ and val/")
        train, test = (everything.part(rows.nonzero()[:, 0]) for rows in (~chosen, chosen))
        if lost := [name for label, name in enumerate(classes) if label not in train.labels]:
            raise DataError(
                f"{path}: every picture of class {', '.join(lost[:4])} was set apart for testing; add pictures, or "
                "make train/ and val/ yourself"
            )
    if len(classes) < 2:
        raise DataError(f"{path}: only one class ({classes[0]}); one sub-folder a class, and two classes at least")
    held = TensorImages(_decode_all(train.files, cut), train.labels)
    measured = TensorImages(_decode_all(test.files, cut), test.labels)
    mean, std = moments(held.images)
    return Dataset("folder", held, measured, classes, mean, std, pad=max(1, side // 8), flip=True)


def _for_testing(name: Path) -> bool:
    return hashlib.sha256(name.as_posix().encode()).digest()[0] % 5 == 0


def moments(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every channel, pixels in [0, 1]."""
    levels = torch.stack([torch.bincount(images[:, c].flatten(), minlength=256) for c in range(images.shape[1])])
    share = levels.double() / levels.sum(1, keepdim=True)
    value = torch.arange(256, dtype=torch.float64) / 255
    mean = (share * value).sum(1)
    std = ((share * value**2).sum(1) - mean**2).clamp_min(1e-4).sqrt()
    return tuple(round(float(v), 4) for v in mean), tuple(round(float(v), 4) for v in std)


def _class_tree(folder: Path, cut: Preprocessing) -> tuple[FolderImages, tuple[str, ...]]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one sub-folder of images per class in it")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    files = [_pictures(folder / name) for name in classes]
    empty = [name for name, found in zip(classes, files) if not found]
    if not classes or empty:
        what = f"no image in class {', '.join(empty[:4])}" if empty else "no class folder"
        raise DataError(f"{folder}: {what}; expected images ({', '.join(sorted(SUFFIXES))}) in one folder per class")
    # in turn from every class: whoever takes the first images, to calibrate on or to show, has some of all
    mixed = sorted(
        ((place + 0.5) / len(found), label, file)
        for label, found in enumerate(files)
        for place, file in enumerate(found)
    )
    labels = torch.tensor([label for _, label, _ in mixed])
    return FolderImages([file for _, _, file in mixed], labels, cut), tuple(classes)


def _pictures(folder: Path) -> list[Path]:
    """Picture files in a folder and below, without those that systems hide there."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES)
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def _annotated(folder: Path, notes: Path, classes: tuple[str, ...]) -> FolderImages:
    number = {name: i for i, name in enumerate(classes)}
    rows = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines() if line.strip()]
    wrong = [row for row in rows if len(row) < 2 or row[1] not in number]
    if wrong or not rows:
        raise DataError(f"{notes}: {wrong[0] if wrong else 'empty'}; expected lines of file name, tab, class name")
    missing = [row[0] for row in rows if not (folder / row[0]).is_file()]
    if missing:
        raise DataError(f"{folder}: {len(missing)} listed images are missing, the first is {missing[0]}")
    return FolderImages([folder / row[0] for row in rows], torch.tensor([number[row[1]] for row in rows]), _cut(64))


def _same_classes(train: tuple[str, ...], test: tuple[str, ...], path: Path) -> None:
    if train != test:
        different = sorted(set(train) ^ set(test))
        raise DataError(f"{path}: train and val hold different classes, for example {', '.join(different[:4])}")
