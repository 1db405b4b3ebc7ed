"""The state of a training run: what it needs, what changes with every step, and how it is stored and continued."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autorep import _native, data, models
from autorep.data.augment import epoch_order
from autorep.errors import ConfigError
from autorep.replacement import MaskedActivation, Replacement
from autorep.training import parallel
from autorep.training.averaging import WeightAverage
from autorep.training.distillation import FeatureTap, Teacher
from autorep.training.evaluate import accuracy
from autorep.training.runs import Run, load_optimizer_, optimizer_tensors
from autorep.training.settings import ReplaceSettings, TrainSettings

_CALIBRATION_BATCH = 256


@dataclass
class EpochSums:
    """What one epoch has summed up so far, on this process."""

    loss: float = 0.0
    right: int = 0
    seen: int = 0
    flips: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class Replacing:
    """What a run has beyond a baseline's when it replaces activations."""

    settings: ReplaceSettings
    handle: Replacement
    budget: int
    teacher: Teacher
    tap: FeatureTap
    average: WeightAverage | None = None


@dataclass(eq=False)
class Trainer:
    """All that is needed or changes while a run goes on."""

    settings: TrainSettings | ReplaceSettings
    run: Run
    processes: parallel.Processes
    dataset: data.Dataset
    held_out: data.Images
    model: nn.Module
    wrapped: nn.Module
    replacing: Replacing | None = None
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    step: int = 0
    best: float = -1.0
    sums: EpochSums = field(default_factory=EpochSums)

    @property
    def steps_per_epoch(self) -> int:
        return max(len(self.dataset.train) // self.settings.batch_size, 1)

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    @property
    def freeze_step(self) -> int:
        """The step before which masks become final."""
        share = self.replacing.settings.freeze_at if self.replacing is not None else None
        return round((share or 0.0) * self.total_steps)

    @property
    def count(self) -> int | None:
        """ReLUs kept now; None for a baseline."""
        return None if self.replacing is None else self.replacing.handle.count()

    def place(self, x: Tensor) -> Tensor:
        """Images on this process's device in the settings' memory layout."""
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return x.to(self.processes.device).contiguous(memory_format=layout)

    def held_out_accuracy(self) -> float:
        """Accuracy of the model as it is now on the held-out images, in percent."""
        return accuracy(self.model, self.held_out, self.dataset, self.processes)

    def calibration_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the calibration images, normalised, not augmented."""
        wanted = self.replacing.settings.calibration_images if self.replacing is not None else 0
        order = epoch_order(len(self.dataset.train), self.settings.seed, -1)[:wanted]
        own = data.Subset(self.dataset.train, order[self.processes.rank :: self.processes.count])
        for x, y in data.evaluation_batches(own, self.dataset, _CALIBRATION_BATCH):
            yield self.place(x), y.to(self.processes.device)


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


def weights_optimizer(model: nn.Module, settings: TrainSettings | ReplaceSettings) -> torch.optim.Optimizer:
    """SGD or Adam over weights (decayed) and over biases and batch norm (not); rates follow each group's `peak`."""
    apart = {id(p) for m in model.modules() if isinstance(m, MaskedActivation) for p in m.parameters()}
    own = [p for p in model.parameters() if id(p) not in apart]
    rate = settings.learning_rate or 0.0
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p.ndim > 1], "weight_decay": settings.weight_decay, "peak": rate},
        {"params": [p for p in own if p.ndim <= 1], "peak": rate},
    ]
    if isinstance(settings, ReplaceSettings) and settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=rate)
    momentum = settings.momentum if isinstance(settings, TrainSettings) else 0.9
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0)


def adam(parameters: list[nn.Parameter], rate: float | None) -> torch.optim.Optimizer:
    """Adam for coefficients or auxiliary parameters; the rate follows `peak`."""
    return torch.optim.Adam([{"params": parameters, "peak": rate or 0.0}], fused=True)


def store(trainer: Trainer) -> None:
    """Write a checkpoint from which `restore_` continues bit for bit."""
    tensors = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
    for name, optimizer in trainer.optimizers.items():
        tensors |= optimizer_tensors(optimizer, f"optimizer.{name}")
    average = trainer.replacing.average if trainer.replacing is not None else None
    if average is not None:
        tensors |= {f"average.{name}": value for name, value in average.state.items()}
    state = {
        "step": trainer.step,
        "best": trainer.best,
        "sums": dataclasses.asdict(trainer.sums),
        "average_count": average.count if average is not None else None,
        "log_lines": len(trainer.run.log),
    }
    trainer.run.save_checkpoint(tensors, state)


def restore_(trainer: Trainer) -> bool:
    """Continue from the run's checkpoint when the settings ask for it and there is one."""
    found = trainer.run.load_checkpoint() if trainer.settings.resume else None
    if found is None:
        return False
    tensors, state = found
    models.load_weights_(trainer.model, _with_prefix(tensors, "model."))
    replacing = trainer.replacing
    if replacing is not None and replacing.handle.frozen:
        del trainer.optimizers["aux"]
    for name, optimizer in trainer.optimizers.items():
        load_optimizer_(optimizer, f"optimizer.{name}", tensors)
    if replacing is not None and state["average_count"] is not None:
        replacing.average = WeightAverage(trainer.model, replacing.settings.average or 0.0)
        replacing.average.state = _with_prefix(tensors, "average.")
        replacing.average.count = state["average_count"]
    trainer.step, trainer.best = state["step"], state["best"]
    trainer.sums = EpochSums(**state["sums"])
    trainer.run.rewind(state["log_lines"])
    return True


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
