"""What baseline training and replacement share: a run's state, its batches, its epochs, its checkpoints."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autorep import _native, data, models
from autorep.data.augment import epoch_order, generator
from autorep.errors import ConfigError
from autorep.replacement.averaging import averaged_state
from autorep.training import parallel
from autorep.training.evaluate import accuracy
from autorep.training.progress import Progress, write_tensorboard
from autorep.training.runs import Run, load_tensors
from autorep.training.settings import ReplaceSettings, TrainSettings


@dataclass
class EpochSums:
    """What one epoch has summed up so far, on this process."""

    loss: float = 0.0
    right: int = 0
    seen: int = 0
    flips: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class Trainer:
    """A run as it goes on: what it needs, and what changes with every step."""

    settings: TrainSettings | ReplaceSettings
    run: Run
    processes: parallel.Processes
    dataset: data.Dataset
    held_out: data.Images
    model: nn.Module
    wrapped: nn.Module
    step: int = 0
    best: float = -1.0
    sums: EpochSums = field(default_factory=EpochSums)

    @property
    def steps_per_epoch(self) -> int:
        return max(len(self.dataset.train) // self.settings.batch_size, 1)

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    def place(self, x: Tensor) -> Tensor:
        """Images on this process's device in the settings' memory layout."""
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return x.to(self.processes.device).contiguous(memory_format=layout)

    @property
    def precision(self) -> torch.dtype:
        """What passes compute in; "auto" is bfloat16 on a graphics processor alone."""
        wanted = self.settings.precision
        half = wanted == "bfloat16" or (wanted == "auto" and self.processes.device.type == "cuda")
        return torch.bfloat16 if half else torch.float32

    def autocast(self) -> torch.autocast:
        """The settings' precision. Open it for each step: kept open longer it would go on using weights cast before."""
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=self.precision != torch.float32)

    def held_out_accuracy(self) -> float:
        """Accuracy of the model as it is now on the held-out images, in percent."""
        return accuracy(self.model, self.held_out, self.dataset, self.processes)

    def steps(
        self, store: Callable[[], None], facts: Callable[[], dict[str, Any]], averaged: Averaged = nullcontext
    ) -> Iterator[int]:
        """Every step still to be taken; what belongs between two of them is done here.

        store: writes a checkpoint; facts: more for the epoch's line in the log ("relus" among them, where they count);
        averaged: opens the weights to measure with. An epoch may be the run's best only once its masks are final.
        """
        progress = Progress(self.processes.first, self.steps_per_epoch, self.settings)
        for step in range(self.step, self.total_steps):
            started = time.perf_counter()
            yield step
            self.step, sums = step + 1, self.sums
            sums.seconds += time.perf_counter() - started
            progress.show(self.step, sums.loss / sums.seen, 100 * sums.right / sums.seen, facts().get("relus"))
            epoch_ended = self.step % self.steps_per_epoch == 0
            if epoch_ended:
                progress.close_epoch(self._end_epoch(facts(), averaged))
            if epoch_ended or self.step % self.settings.checkpoint_every == 0:
                store()
        progress.close()

    def gradients_(self, step: int, loss_of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        """Forward and backward over this process's share of the step's batch; loss_of(x, y) gives loss and logits."""
        settings, processes = self.settings, self.processes
        epoch, within = divmod(step, self.steps_per_epoch)
        size = min(settings.batch_size, len(self.dataset.train))
        index = epoch_order(len(self.dataset.train), settings.seed, epoch)[within * size : (within + 1) * size]
        dropout = generator("dropout", settings.seed, step, processes.rank)
        torch.manual_seed(int(torch.randint(2**62, (), generator=dropout)))
        self.wrapped.train()
        for part in range(settings.accumulate):
            share = processes.share(len(index), part, settings.accumulate)
            x, y = data.training_batch(self.dataset, index, (settings.seed, step), share, settings.augment)
            x, y = self.place(x), y.to(processes.device)
            last = part == settings.accumulate - 1
            no_sync = getattr(self.wrapped, "no_sync", nullcontext)
            with nullcontext() if last else no_sync():
                loss, logits = loss_of(x, y)
                (loss * (len(y) * processes.count / len(index))).backward()
            self.sums.loss += float(loss.detach()) * len(y)
            self.sums.right += int((logits.detach().argmax(1) == y).sum())
            self.sums.seen += len(y)

    def _end_epoch(self, facts: dict[str, Any], averaged: Averaged) -> dict[str, Any]:
        """Measure on held-out images, keep the best final state, write the epoch's line."""
        processes, sums = self.processes, self.sums
        processes.average_buffers_(self.model)
        final = facts.pop("final", True)
        with averaged():
            measured = self.held_out_accuracy()
            if final and measured >= self.best:
                self.best = measured
                self.run.save_best(averaged_state(self.model))
        loss, right, seen = processes.total(sums.loss, sums.right, sums.seen)
        entry = {
            "event": "epoch",
            "step": self.step,
            "epoch": self.step // self.steps_per_epoch,
            "loss": round(loss / seen, 5),
            "train_accuracy": round(100 * right / seen, 3),
            "held_out_accuracy": round(measured, 3),
            "images_per_second": round(seen / max(sums.seconds, 1e-9), 1),
            "seconds": round(sums.seconds, 2),
            **facts,
        }
        self.run.record(**entry)
        self.sums = EpochSums()
        if self.settings.tensorboard and processes.first:
            write_tensorboard(self.run.directory, entry)
        return entry

    def take_best_(self) -> None:
        """The state that did best on the held-out images, where an epoch was measured."""
        if self.best < 0:
            return
        if self.processes.count > 1:
            torch.distributed.barrier()  # the first process has written best.safetensors
        best, _ = load_tensors(self.run.directory / "best.safetensors")
        self.model.load_state_dict(best, strict=False)

    def store(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write a checkpoint of the model, of these tensors and of this state."""
        own = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        counters = {"step": self.step, "best": self.best, "sums": dataclasses.asdict(self.sums)}
        self.run.save_checkpoint(own | tensors, counters | state | {"log_lines": len(self.run.log)})

    def restore_(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Go back to the run's checkpoint when the settings ask for it and there is one: its tensors and state."""
        found = self.run.load_checkpoint() if self.settings.resume else None
        if found is None:
            return None
        tensors, state = found
        models.load_weights_(self.model, with_prefix(tensors, "model."))
        self.step, self.best = state["step"], state["best"]
        self.sums = EpochSums(**state["sums"])
        self.run.rewind(state["log_lines"])
        self.run.record_start(self.step)
        return tensors, state


Averaged = Callable[[], AbstractContextManager[None]]


def prepare(settings: TrainSettings | ReplaceSettings) -> Trainer:
    """Join the processes, read the data, build the network with fresh weights, open the run directory."""
    for wanted, name, package, extra in (
        (settings.tensorboard, "tensorboard", "tensorboard", "tensorboard"),
        (settings.plots, "plots", "matplotlib", "report"),
    ):
        if wanted and importlib.util.find_spec(package) is None:
            raise ConfigError(f"{name} = true needs {package}: pip install 'autorep[{extra}]'")
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    _native.keep_freed_memory()
    processes = parallel.join(settings.device)
    dataset = data.load(settings.data, settings.data_path, settings.image_size)
    channels = models.spec(settings.model).channels
    if channels != dataset.shape[0]:
        raise ConfigError(
            f"{settings.model} takes images of {channels} channels and {settings.data} has {dataset.shape[0]}; give"
            " another --model or --data"
        )
    dataset, held_out = dataset.held_out(round(settings.held_out * len(dataset.train)), settings.seed)
    torch.manual_seed(settings.seed)
    model = models.create(settings.model, len(dataset.classes), dataset.shape[-1]).to(processes.device)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a valid form of to()
    run = Run.start(settings.out, settings, settings.resume, processes.first)
    return Trainer(settings, run, processes, dataset, held_out, model, model)


def weights_optimizer(
    parameters: list[nn.Parameter], rate: float, weight_decay: float, momentum: float = 0.9, kind: str = "sgd"
) -> torch.optim.Optimizer:
    """SGD or Adam over weights (decayed) and over biases and batch norm (not); rates follow each group's `peak`."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay, "peak": rate},
        {"params": [p for p in parameters if p.ndim <= 1], "peak": rate},
    ]
    if kind == "adam":
        return torch.optim.Adam(groups, lr=rate)
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0)


def set_rate_(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """So much of each group's highest learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names start so, without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
