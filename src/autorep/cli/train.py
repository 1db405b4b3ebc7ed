"""Commands that count, train, replace and evaluate: `autorep count`, `train`, `replace`, `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from autorep.cli.named import is_network
from autorep.cli.output import emit, table
from autorep.errors import ConfigError, DataError
from autorep.settings import require
from autorep.training.settings import ReplaceSettings, TrainSettings


@dataclass(frozen=True)
class Count:
    """Count a network's ReLUs, site by site."""

    model: Annotated[str, tyro.conf.Positional]
    """Network, for example resnet18; FILE.py:FUNCTION; or a finished model: zoo name, saved model, run directory."""
    image_size: int | None = None
    """Side of the input images; default is the network's usual one."""
    classes: int | None = None
    """Number of classes; default is that of the network's usual data set."""
    kinds: tuple[str, ...] = ("relu", "relu6", "silu")
    """Activations to count."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep.replacement import count_relus

        network, example, kept = self._network()
        counted = count_relus(network, example, self.kinds)
        rows = [[site["name"], f"{site['relus']:,}"] for site in counted["sites"]]
        rows.append(["all", f"{counted['total']:,}"])
        head = ["site", "relus"]
        if kept is not None:
            counted |= {"kept": sum(kept)}
            head.append("kept")
            for row, count in zip(rows, [*kept, sum(kept)]):
                row.append(f"{count:,}")
        result = {"model": self.model, "image_size": example.shape[-1], **counted}
        text = table(rows, head, "lrr")
        emit(result, "\n".join([text, *pooling_text(counted["max_pool"])]), self.json)
        return 0

    def _network(self) -> tuple[Any, Any, list[int] | None]:
        """The module, an input for it, and of a replaced model the ReLUs that every site keeps."""
        import torch

        from autorep import models, zoo

        if not is_network(self.model):
            if (self.image_size, self.classes) != (None, None):
                raise ConfigError(f"count: {self.model} is finished: --image-size and --classes are for networks")
            saved = zoo.load(self.model)
            kept = None if saved.replacement is None else [row["kept"] for row in saved.replacement.table()]
            return saved.model, torch.zeros(1, *saved.input_shape), kept
        spec = models.spec(self.model)
        size = spec.image_size if self.image_size is None else self.image_size
        return models.create(self.model, self.classes, size), torch.zeros(1, spec.channels, size, size), None


@dataclass(frozen=True)
class Train(TrainSettings):
    """Train an all-ReLU baseline (SGD, cosine schedule)."""

    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep.training import train_baseline

        result = train_baseline(self)
        emit(result, _summary(result, self.out), self.json)
        return 0


@dataclass(frozen=True)
class Replace(ReplaceSettings):
    """Replace ReLUs of a trained network down to a budget and fine-tune."""

    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep.training import replace

        result = replace(self)
        emit(result, _summary(result, self.out), self.json)
        return 0 if result["finished"] else 1


@dataclass(frozen=True)
class Evaluate:
    """Accuracy of a saved model on its data set's test images, and how many images leave its range."""

    model: Annotated[str, tyro.conf.Positional]
    """A saved model (NAME.json, NAME.safetensors), a run directory, or a name from `autorep zoo`."""
    data: str | None = None
    """Data set; default is the one the model was trained on."""
    data_path: Path | None = None
    """Archive, folder or .npz file of the data set; not needed for digits."""
    limit: int | None = None
    """Only the first so many test images."""
    shifted: int = 2000
    """Of a replaced model, how many images are also measured with every standard shift; 0 leaves shifts out."""
    other_data: str | None = None
    """Another data set whose test images must not leave the range either, for example cifar10 for a cifar100 model."""
    other_path: Path | None = None
    """Archive, folder or .npz file of that data set."""
    threads: int | None = None
    """CPU threads; default is torch's own choice."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        import torch

        from autorep import data, zoo
        from autorep.training import accuracy

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        saved = zoo.load(self.model)
        name = self.data or saved.info["data"]
        dataset = data.load(name, self.data_path, saved.input_shape[-1])
        _same_classes(self.model, saved.info["classes"], name, dataset.classes)
        require(self.limit is None or self.limit >= 1, "limit", self.limit, "at least 1 image")
        require(self.shifted >= 0, "shifted", self.shifted, "0 or more images")
        count = min(self.limit or len(dataset.test), len(dataset.test))
        images = data.Subset(dataset.test, torch.arange(count))
        measured = accuracy(saved.model, images, dataset)
        result: dict[str, Any] = {"model": self.model, "data": name, "images": count, "accuracy": measured}
        text = f"{self.model}: {measured:.2f} % of {count:,} test images of {name}"
        if saved.replacement is not None:
            result |= {"relus": saved.replacement.count(), "relus_total": saved.replacement.total}
            text += f", {result['relus']:,} of {result['relus_total']:,} ReLUs kept"
            if self.shifted:
                text += "\n\n" + self._measure_range(saved, images, dataset, result)
        emit(result, text, self.json)
        return 0

    def _measure_range(self, saved: Any, images: Any, dataset: Any, result: dict[str, Any]) -> str:
        """Images lost with every shift, and the tail of the largest input per layer; adds both to the result."""
        from autorep import data
        from autorep.replacement.reach import LIMIT, TAIL
        from autorep.training import shifts
        from autorep.training.compiled import compile_saved

        model, program = saved.model, compile_saved(saved) if "ranges" in saved.info else None
        rows, plain = shifts.measure(model, program, images, dataset, self.shifted)
        if self.other_data is not None:
            other = data.load(self.other_data, self.other_path, dataset.shape[-1]).test
            rows.append(
                shifts.strange(self.other_data, model, program, lambda: shifts.pixels_of(other, self.shifted), dataset)
            )
        tails = plain.tails()
        finite = {name: [value if math.isfinite(value) else None for value in tail] for name, tail in tails.items()}
        result |= {"shifts": rows, "tails": finite, "range": LIMIT, "compiled": program is not None}
        accuracies = [f"{row['accuracy']:.2f} %" if "accuracy" in row else "" for row in rows]
        lines = [
            (row["shift"], f"{row['images']:,}", f"{row['lost']:,}", f"{row['far']:,}", right)
            for row, right in zip(rows, accuracies)
        ]
        worst = sorted(tails.items(), key=lambda item: -item[1][-1])[:5]
        heads = ("layer", *(f"{100 * share:g} % of images" for share in TAIL), "all images")
        return "\n".join(
            [
                _LOST if program is not None else _LOST_IN_FLOAT,
                f"Far images: an input of a polynomial beyond {LIMIT:g} deviations, which a program may still hold",
                table(lines, ("shift", "images", "lost", "far", "accuracy"), "lrrrr"),
                "",
                "Largest input of an image in deviations, the five layers of the longest tails",
                table([(name, *(f"{value:.1f}" for value in tail)) for name, tail in worst], heads, "lrrrr"),
            ]
        )


def _same_classes(model: str, own: Sequence[str], data: str, found: Sequence[str]) -> None:
    """An accuracy means something only where a label is the same class in the model and in the data."""
    if list(own) != list(found):

        def shown(classes: Sequence[str]) -> str:
            return f"{len(classes)} classes ({', '.join(classes[:4])}{', …' if len(classes) > 4 else ''})"

        raise DataError(
            f"{model} tells {shown(own)} apart, {data} has {shown(found)}; give the data it was trained for"
        )


_LOST = "Lost images: a value leaves what the compiled program can hold, so that the private answer is wrong"
_LOST_IN_FLOAT = (
    "Lost images: no finite answer. No ranges are stored with this model (`autorep calibrate` does that), so what its"
    " program could hold is not known"
)


def pooling_text(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """What max pooling costs beside the ReLUs that a budget counts, and what to do about it."""
    if not calls:
        return []
    rows = [(call["name"], f"{call['comparisons']:,}") for call in calls]
    return [
        "",
        table(rows, ("max pooling at", "comparisons"), "lr"),
        f"Max pooling makes {sum(call['comparisons'] for call in calls):,} comparisons that no budget counts, each as "
        "costly as a kept ReLU.",
        "Average pooling makes none; `autorep cost` shows the difference.",
    ]


def _summary(result: dict[str, Any], out: Path) -> str:
    lines = [f"test accuracy {result['test_accuracy']:.2f} %, held-out accuracy {result['held_out_accuracy']:.2f} %"]
    if "relus" in result:
        lines[0] += f", {result['relus']:,} of {result['relus_total']:,} ReLUs kept"
        lines.append(f"all-ReLU network: test accuracy {result['teacher_test_accuracy']:.2f} %")
        lost = (
            f"{result['lost']:,} of {result['lost_of']:,} training images are lost, {result['far']:,} go far"
            " (see `autorep evaluate`)"
        )
        lines.append(
            lost
            if result["finished"]
            else f"NOT FINISHED: {lost}, more than 1 in 10,000. Go on from it (--start {out} --epochs 1"
            " --learning-rate 0.004 --input-limit 16 --input-opening 1 --stress-limit 7 --stress-images 64), or keep"
            " more ReLUs"
        )
    return "\n".join([*lines, f"model: {out / 'model.safetensors'}"])
