"""What a person sees while a run goes on: a bar with loss, accuracy and count, a line per epoch, TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tqdm import tqdm

from autorep.training.settings import RunSettings


class Progress:
    """A bar per epoch on a terminal; only the line per epoch elsewhere."""

    def __init__(self, shown: bool, steps: int, settings: RunSettings) -> None:
        self._shown = shown
        self._steps = steps
        self._title = f"{settings.model} on {settings.data}"
        self._bar: tqdm[Any] | None = None

    def show(self, step: int, loss: float, accuracy: float, count: int | None) -> None:
        """One step has been taken; loss and accuracy are the epoch's means so far."""
        if not self._shown:
            return
        if self._bar is None:
            first = (step - 1) % self._steps
            self._bar = tqdm(total=self._steps, initial=first, desc=self._title, leave=False, disable=None)
        relus = {} if count is None else {"relus": f"{count:,}"}
        self._bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.2f}", refresh=False, **relus)
        self._bar.update()

    def close_epoch(self, entry: dict[str, Any]) -> None:
        """Replace the bar by the epoch's line."""
        if not self._shown:
            return
        self.close()
        relus = f"  relus {entry['relus']:,}  flips {entry['flips']:,}" if "relus" in entry else ""
        tqdm.write(
            f"epoch {entry['epoch']:>3}  loss {entry['loss']:.4f}  train {entry['train_accuracy']:.2f} %  "
            f"held out {entry['held_out_accuracy']:.2f} %{relus}  {entry['images_per_second']:.0f} images/s"
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def write_tensorboard(directory: Path, entry: dict[str, Any]) -> None:
    """Add an epoch's numbers to the TensorBoard events in the run directory."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory / "tensorboard")) as writer:
        for name, value in entry.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                writer.add_scalar(name, value, entry["epoch"])
