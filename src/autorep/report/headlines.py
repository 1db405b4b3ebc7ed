"""The few figures that stand at the head of a report, each one of what is told at length below it."""

from __future__ import annotations

from collections.abc import Iterator

from autorep import data, models
from autorep.report.collect import Sources, TrainingRun
from autorep.table import milliseconds, percent, thousands


def headlines(sources: Sources) -> list[tuple[str, str]]:
    """(what, how much), at most one of each kind, where the sources have it."""
    return [*_accuracy(sources), *_latency(sources), *_peer(sources), *_zoo(sources)]


def _accuracy(sources: Sources) -> Iterator[tuple[str, str]]:
    """The replacement that keeps the smallest share of its ReLUs losing at most one point; else that of least loss."""
    needed = {"test_accuracy", "teacher_test_accuracy", "relus", "relus_total"}
    finished = [run for run in sources.runs if run.logged and needed <= run.result.keys()]
    if not finished:
        return

    def rank(run: TrainingRun) -> tuple[bool, float]:
        loss = run.result["teacher_test_accuracy"] - run.result["test_accuracy"]
        return loss > 1, loss if loss > 1 else run.result["relus"] / run.result["relus_total"]

    best = min(finished, key=rank)
    result, settings = best.result, best.settings
    share = percent(100 * result["relus"] / result["relus_total"], 0)
    what = f"{models.title(settings['model'])} on {data.title(settings['data'])} with {share} of its ReLUs"
    before = percent(result["teacher_test_accuracy"])
    yield f"{what} (all: {before})", percent(result["test_accuracy"])


def _latency(sources: Sources) -> Iterator[tuple[str, str]]:
    """One private image of the paper's first network, at the budget it is best known for, else at the smallest."""
    rows = [row for row in sources.inferences() if (row["network"], row["image_size"]) == ("resnet18", 32)]
    for row in sorted(rows, key=lambda row: (row["relus"] != 12_900, row["relus"]))[:1]:
        what = f"one private image, {models.title(row['network'])} with {thousands(row['relus'])} ReLUs, two cores"
        yield what, milliseconds(row["online_seconds"])
        yield "rounds between the two servers for it", str(row["rounds"])


def _peer(sources: Sources) -> Iterator[tuple[str, str]]:
    """How much faster than CrypTen at the smallest budget that both compared at, our dealer's time added."""
    rows = [row for record in sources.named("peers") for row in record.result["rows"]]
    ours = [row for row in rows if row["system"] == "AutoReP, with dealer" and row["relus"]]
    for row in sorted(ours, key=lambda row: row["relus"])[:1]:
        yield f"as fast as CrypTen at {thousands(row['relus'])} ReLUs, our dealer's time added", f"{row['ratio']:.1f}×"


def _zoo(sources: Sources) -> Iterator[tuple[str, str]]:
    for record in sources.named("zoo")[-1:]:
        rows = record.result["models"].values()
        images, same = sum(row["images"] for row in rows), sum(row["same_as_fixed"] for row in rows)
        yield f"of {images:,} private answers of {len(rows)} models are fixed point's", f"{same:,}"
