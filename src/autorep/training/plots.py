"""A picture of a run: ReLUs, accuracy and flips by epoch, as the report draws them."""

from __future__ import annotations

from pathlib import Path

from autorep.errors import DataError
from autorep.report.figures import training_curves
from autorep.training.runs import read_log


def plot_run(directory: str | Path) -> Path:
    """Draw <directory>/run.png from the log; a baseline has the accuracy panel only."""
    epochs = [entry for entry in read_log(directory) if entry["event"] == "epoch"]
    if not epochs:
        raise DataError(f"{directory}: log.jsonl holds no finished epoch to draw")
    path = Path(directory) / "run.png"
    training_curves([(path.parent.name, epochs)]).savefig(path, dpi=120)
    return path
