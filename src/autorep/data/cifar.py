"""CIFAR-10 and CIFAR-100 as published (python or binary archive or folder) or as one .npz file."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autorep.data.arrays import read_parts
from autorep.data.dataset import Dataset, TensorImages, known
from autorep.errors import DataError

_PIXELS = 3 * 32 * 32
_PARTS = {
    10: (tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)),
    100: (("train",), ("test",)),
}
_EXPECTED = {
    10: "cifar-10-python.tar.gz, cifar-10-binary.tar.gz, either of them unpacked, or an .npz file with x_train, "
    "y_train, x_test, y_test",
    100: "cifar-100-python.tar.gz, cifar-100-binary.tar.gz, either of them unpacked, or an .npz file with x_train, "
    "y_train, x_test, y_test",
}


def cifar10(path: Path) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 images of 10 classes."""
    return _cifar(path, 10)


def cifar100(path: Path) -> Dataset:
    """CIFAR-100 with its 100 fine labels."""
    return _cifar(path, 100)


def _cifar(path: Path, classes: int) -> Dataset:
    if path.suffix == ".npz":
        train, test, _ = read_parts(path, 32)
    else:
        files = _open_files(path, classes)
        train, test = (_join([_read_part(files, part, classes, path) for part in parts]) for parts in _PARTS[classes])
    for part, images, count in (("training", train, 50_000), ("test", test, 10_000)):
        if len(images) > count:
            raise DataError(f"{path}: {len(images)} {part} images; CIFAR-{classes} has {count}")
        if int(images.labels.max()) >= classes:
            raise DataError(
                f"{path}: label {int(images.labels.max())} in the {part} part; CIFAR-{classes} has "
                f"labels 0 to {classes - 1}"
            )
    return known(f"cifar{classes}", train, test)


def _open_files(path: Path, classes: int) -> dict[str, Any]:
    """File name -> a function that reads it, from a folder (at any depth of one) or a tar archive."""
    if path.is_dir():
        found = {p.name: p for p in sorted(path.rglob("*")) if p.is_file()}
        archives = [p for p in found.values() if f"cifar-{classes}-" in p.name and ".tar" in p.name]
        if archives and not any(name.startswith((*_PARTS[classes][0],)) for name in found):
            return _open_files(archives[0], classes)
        single = path / f"cifar{classes}.npz"
        if single.name in found and not any(name.startswith(_PARTS[classes][0]) for name in found):
            raise DataError(f"{path} is a folder; give the file itself: {single}")
        return {name: file.read_bytes for name, file in found.items()}
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected {_EXPECTED[classes]}")
    try:
        with tarfile.open(path) as archive:
            contents = {
                Path(member.name).name: archive.extractfile(member).read()  # type: ignore[union-attr]  # isfile()
                for member in archive.getmembers()
                if member.isfile()
            }
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path}: not a complete tar archive ({error}); expected {_EXPECTED[classes]}") from None
    return {name: (lambda data=data: data) for name, data in contents.items()}


def _read_part(files: dict[str, Any], part: str, classes: int, where: Path) -> tuple[np.ndarray, np.ndarray]:
    if part in files:
        return _read_pickled(files[part](), f"{where}: {part}", classes)
    if f"{part}.bin" in files:
        return _read_binary(files[f"{part}.bin"](), f"{where}: {part}.bin", classes)
    raise DataError(f"{where}: neither {part} nor {part}.bin is there; expected {_EXPECTED[classes]}")


class _PlainUnpickler(pickle.Unpickler):
    """Reads CIFAR's python batches, which are dictionaries of numpy arrays, and nothing else."""

    _ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"refusing to load {module}.{name}")
        return super().find_class(module, name)


def _read_pickled(data: bytes, where: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
        pixels, labels = batch[b"data"], batch[b"labels" if classes == 10 else b"fine_labels"]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{where}: not a CIFAR-{classes} python batch ({error})") from None
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DataError(f"{where}: data is {pixels.dtype} {pixels.shape}; expected uint8 (N, {_PIXELS})")
    return pixels, np.asarray(labels, dtype=np.int64)


def _read_binary(data: bytes, where: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    head = 1 if classes == 10 else 2  # CIFAR-100 puts the coarse label first
    if not data or len(data) % (head + _PIXELS):
        raise DataError(f"{where}: {len(data)} bytes; expected a multiple of {head + _PIXELS} (truncated?)")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, head + _PIXELS)
    return rows[:, head:], rows[:, head - 1].astype(np.int64)


def _join(parts: list[tuple[np.ndarray, np.ndarray]]) -> TensorImages:
    pixels = np.concatenate([p for p, _ in parts]).reshape(-1, 3, 32, 32)
    return TensorImages(torch.from_numpy(pixels), torch.from_numpy(np.concatenate([y for _, y in parts])))
