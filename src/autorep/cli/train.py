"""Commands that count, train, replace and evaluate: `autorep count`, `train`, `replace`, `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from autorep.cli.output import emit, table
from autorep.training.settings import ReplaceSettings, TrainSettings


@dataclass(frozen=True)
class Count:
    """Count a network's ReLUs, site by site."""

    model: Annotated[str, tyro.conf.Positional]
    """Network, for example resnet18."""
    image_size: int | None = None
    """Side of the input images; default is the network's usual one."""
    classes: int | None = None
    """Number of classes; default is that of the network's usual data set."""
    kinds: tuple[str, ...] = ("relu", "relu6", "silu")
    """Activations to count."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        import torch

        from autorep import models
        from autorep.replacement import count_relus

        spec = models.spec(self.model)
        size = self.image_size or spec.image_size
        network = models.create(self.model, self.classes, size)
        counted = count_relus(network, torch.zeros(1, spec.channels, size, size), self.kinds)
        result = {"model": self.model, "image_size": size, **counted}
        rows = [(site["name"], f"{site['relus']:,}") for site in counted["sites"]]
        text = table([*rows, ("all", f"{counted['total']:,}")], ("site", "relus"), "lr")
        emit(result, "\n".join([text, *pooling_text(counted["max_pool"])]), self.json)
        return 0


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
        count = min(self.limit or len(dataset.test), len(dataset.test))
        images = data.Subset(dataset.test, torch.arange(count))
        measured = accuracy(saved.model, images, dataset)
        result: dict[str, Any] = {"model": self.model, "data": name, "images": count, "accuracy": measured}
        text = f"{self.model}: {measured:.2f} % of {count:,} test images of {name}"
        if saved.replacement is not None:
            result |= {"relus": saved.replacement.count(), "relus_total": saved.replacement.total}
            text += f", {result['relus']:,} of {result['relus_total']:,} ReLUs kept"
            if self.shifted:
                text += "\n\n" + self._measure_range(saved.model, images, dataset, result)
        emit(result, text, self.json)
        return 0

    def _measure_range(self, model: Any, images: Any, dataset: Any, result: dict[str, Any]) -> str:
        """Images lost with every shift, and the tail of the largest input per layer; adds both to the result."""
        from autorep import data
        from autorep.replacement.reach import LIMIT, TAIL
        from autorep.training import shifts

        rows, plain = shifts.measure(model, images, dataset, self.shifted)
        if self.other_data is not None:
            other = data.load(self.other_data, self.other_path, dataset.shape[-1]).test
            rows.append(
                shifts.strange(self.other_data, model, shifts.pixels_of(other, min(self.shifted, len(other))), dataset)
            )
        tails = plain.tails()
        finite = {name: [value if math.isfinite(value) else None for value in tail] for name, tail in tails.items()}
        result |= {"shifts": rows, "tails": finite, "range": LIMIT}
        accuracies = [f"{row['accuracy']:.2f} %" if "accuracy" in row else "" for row in rows]
        lines = [
            (row["shift"], f"{row['images']:,}", f"{row['lost']:,}", right) for row, right in zip(rows, accuracies)
        ]
        worst = sorted(tails.items(), key=lambda item: -item[1][-1])[:5]
        heads = ("layer", *(f"{100 * share:g} % of images" for share in TAIL), "all images")
        return "\n".join(
            [
                f"Lost images: no finite answer, or an input of a polynomial beyond {LIMIT:g} deviations",
                table(lines, ("shift", "images", "lost", "accuracy"), "lrrr"),
                "",
                "Largest input of an image in deviations, the five layers of the longest tails",
                table([(name, *(f"{value:.1f}" for value in tail)) for name, tail in worst], heads, "lrrrr"),
            ]
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
        lost = f"{result['lost']:,} of {result['lost_of']:,} training images are lost (see `autorep evaluate`)"
        lines.append(
            lost
            if result["finished"]
            else f"NOT FINISHED: {lost}, more than 1 in 10,000. Go on from it (--start {out} --epochs 2"
            " --learning-rate 0.005), with a larger --stress-weight if that is not enough, or keep more ReLUs"
        )
    return "\n".join([*lines, f"model: {out / 'model.safetensors'}"])
