"""Accuracy of one model three ways (float, fixed point, private) on the same test images, image by image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from autorep import data, zoo
from autorep.bench.record import RESULTS, load, record
from autorep.cli.output import emit, table
from autorep.compiler.compile import compile_program
from autorep.errors import ConfigError
from autorep.mpc.local import LocalPair
from autorep.program.ir import Program
from autorep.report.agreement import agreement, rounding_error
from autorep.training.saved import SavedModel

CALIBRATION_IMAGES = 512
ERROR_IMAGES, ERROR_RUNS = 50, 6  # what the documented rounding error is measured on


@dataclass(frozen=True)
class ZooAccuracy:
    """Accuracy of zoo models in float, in fixed point and privately on real test images, image by image.

    The private runs are the real protocol between two parties on this machine. Predictions may differ from fixed
    point only where the two best classes are nearer than the rounding error; such ties are counted.
    """

    models: tuple[str, ...] = ()
    """Names from `autorep zoo`, or saved models; default: the whole zoo."""
    cifar10: Path | None = None
    """Archive, folder or .npz file of CIFAR-10."""
    cifar100: Path | None = None
    """Archive, folder or .npz file of CIFAR-100."""
    images: int = 500
    """Test images of each model."""
    batch: int = 20
    """Images in one private query."""
    record: bool = False
    """Write bench/results/zoo.json, and the accuracies into the model's own JSON file."""
    json: str | None = None
    """Write the result as JSON to a file, or to standard output with `-`."""

    def run(self) -> int:
        results = {}
        for name in self.models or zoo.names():
            saved = zoo.load(name)
            dataset = self._dataset(saved)
            results[name] = private_accuracy(saved, dataset, self.images, self.batch, progress=self.json != "-")
            if self.record:
                _note(name, results[name])
        if self.record:
            before = load("zoo")["result"]["models"] if (RESULTS / "zoo.json").exists() else {}
            record("zoo", {"models": before | results})
        emit({"models": results}, describe(results), self.json)
        return 0 if all(result["holds"] for result in results.values()) else 1

    def _dataset(self, saved: SavedModel) -> data.Dataset:
        name = saved.info["data"]
        path = {"cifar10": self.cifar10, "cifar100": self.cifar100}.get(name)
        if path is None and name != "digits":
            raise ConfigError(f"this model was trained on {name}: give its files with --{name} PATH")
        return data.load(name, path)


def private_accuracy(
    saved: SavedModel, dataset: data.Dataset, count: int, batch: int = 20, progress: bool = True
) -> dict[str, Any]:
    """Compile on training images, then run the first `count` test images in every mode."""
    count = min(count, len(dataset.test))
    images, labels = _pixels(dataset.test, count), dataset.test.labels[:count].numpy()
    program = compile_program(
        saved.model,
        np.array_split(_pixels(dataset.train, CALIBRATION_IMAGES), CALIBRATION_IMAGES // 64),
        class_names=dataset.classes,
        normalize=(dataset.mean, dataset.std),
    )
    exact = program.run(images, mode="float")
    fixed = program.run(images, mode="fixed")
    private = _private(program, images, batch, progress)
    compared = agreement(fixed, private, rounding_error(program, images[:ERROR_IMAGES], ERROR_RUNS))
    return {
        "images": count,
        "relus": program.relu_count,
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


def describe(results: dict[str, dict[str, Any]]) -> str:
    """The results for people."""
    rows: list[Sequence[object]] = []
    for name, result in results.items():
        accuracies = [f"{result['accuracy'][mode]:.1f}" for mode in ("float", "fixed", "private")]
        same = f"{result['same_as_fixed']} of {result['images']}"
        rows.append(
            (name, f"{result['relus']:,}", *accuracies, same, result["ties"], f"{result['rounding_error']:.4f}")
        )
    head = ("model", "ReLUs", "float %", "fixed %", "private %", "same class as fixed", "ties", "rounding error")
    return table(rows, head, "lrrrrrrr")


def _private(program: Program, images: np.ndarray, batch: int, progress: bool) -> np.ndarray:
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    with LocalPair(program, timeout=600.0) as pair:
        return np.concatenate([pair.run(part) for part in tqdm(parts, "private queries", disable=not progress)])


def _pixels(images: data.Images, count: int) -> np.ndarray:
    return images.take(torch.arange(min(count, len(images)))).numpy() / 255.0


def _note(name: str, result: dict[str, Any]) -> None:
    """Put the measured accuracies beside the model's other facts."""
    path = Path(zoo.__file__).parent / f"{name}.json"
    if path.exists():
        info = json.loads(path.read_text(encoding="utf-8"))
        kept = ("images", "accuracy", "same_as_fixed", "ties", "rounding_error")
        info["private"] = {key: result[key] for key in kept}
        path.write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
