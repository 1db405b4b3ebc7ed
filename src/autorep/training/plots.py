"""Pictures of a run: count, accuracy and flips per epoch. Needs matplotlib (pip install 'autorep[report]')."""

from __future__ import annotations

from pathlib import Path

from autorep.errors import ConfigError, DataError
from autorep.training.runs import read_log

PANELS = (
    ("ReLUs kept", ("relus",)),
    ("accuracy, %", ("train_accuracy", "held_out_accuracy")),
    ("mask flips", ("flips",)),
)


def plot_run(directory: str | Path) -> Path:
    """Draw <directory>/run.png from the log; a baseline has the accuracy panel only."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'autorep[report]'") from None
    epochs = [entry for entry in read_log(directory) if entry["event"] == "epoch"]
    if not epochs:
        raise DataError(f"{directory}: log.jsonl holds no finished epoch to draw")
    panels = [panel for panel in PANELS if panel[1][0] in epochs[0]]
    figure = Figure(figsize=(7, 2.6 * len(panels)), layout="constrained")
    for axis, (title, names) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels):
        for name in names:
            axis.plot([e["epoch"] for e in epochs], [e[name] for e in epochs], marker="o", label=name.replace("_", " "))
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
        if len(names) > 1:
            axis.legend()
    axis.set_xlabel("epoch")
    path = Path(directory) / "run.png"
    figure.savefig(path, dpi=120)
    return path
