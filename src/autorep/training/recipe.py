"""The recipe: baseline, or calibrate → replace → freeze → fine-tune, in one loop. Read this file first.

`train_baseline` and `replace` set up a Trainer and hand it to `fit_`, whose body is one optimiser step:

1. choose the masks of this step (ramp rule), or let them follow aux after the step (penalty rule);
2. forward, loss = distillation + labels + features + range + penalty, backward;
3. optimiser steps for weights, coefficients and auxiliary parameters;
4. after the freeze, average the weights; after every epoch, measure on held-out images.

Everything random is a function of (seed, step), so a run can be interrupted anywhere and continued bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep import data, models
from autorep.data.augment import epoch_order, generator
from autorep.errors import ConfigError
from autorep.replacement import MaskedActivation, Replacement, replace_activations_
from autorep.training import parallel
from autorep.training.averaging import WeightAverage, averaged_state, reestimate_batch_norm_
from autorep.training.distillation import FeatureTap, Teacher, distillation, feature_distance, stage_names
from autorep.training.evaluate import accuracy
from autorep.training.progress import Progress
from autorep.training.runs import Run, load_optimizer_, load_tensors, optimizer_tensors, save_tensors
from autorep.training.saved import save_model
from autorep.training.schedule import cosine, ramp
from autorep.training.settings import ReplaceSettings, RunSettings, TrainSettings


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
    """All that changes or is needed while a run goes on."""

    settings: TrainSettings | ReplaceSettings
    run: Run
    processes: parallel.Processes
    dataset: data.Dataset
    held_out: data.Images
    model: nn.Module
    wrapped: nn.Module = field(init=False)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    replacement: Replacement | None = None
    teacher: Teacher | None = None
    tap: FeatureTap | None = None
    average: WeightAverage | None = None
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
        if not isinstance(self.settings, ReplaceSettings):
            return 0
        assert self.settings.freeze_at is not None
        return round(self.settings.freeze_at * self.total_steps)

    @property
    def count(self) -> int | None:
        return None if self.replacement is None else self.replacement.count()


def train_baseline(settings: TrainSettings) -> dict[str, Any]:
    """Train an all-ReLU network; the result's model is in settings.out. Returns the final record of the log."""
    trainer = _prepare(settings)
    if settings.weights is not None:
        models.load_weights_(trainer.model, settings.weights)
    trainer.optimizers = {"weights": _weights_optimizer(trainer.model, settings)}
    trainer.wrapped = trainer.processes.wrap(trainer.model)
    _resume_(trainer)
    fit_(trainer)
    return _finish(trainer, {})


def replace(settings: ReplaceSettings) -> dict[str, Any]:
    """Replace a trained network's activations down to the budget; returns the final record of the log."""
    settings = settings.resolved()
    if settings.weights is None:
        raise ConfigError("replacement starts from a trained network: give --weights FILE (see `autorep train`)")
    trainer = _prepare(settings)
    models.load_weights_(trainer.model, settings.weights)
    names = stage_names(trainer.model)
    trainer.teacher = Teacher(trainer.model, names)
    example = torch.zeros(1, *trainer.dataset.shape, device=trainer.processes.device)
    replacement = replace_activations_(
        trainer.model,
        example,
        kinds=settings.kinds,
        degree=settings.degree,
        hysteresis=settings.hysteresis,
        surrogate=settings.surrogate,
        floor=settings.floor,
    )
    replacement.budget = _budget(settings.budget, replacement.total)
    trainer.replacement, trainer.tap = replacement, FeatureTap(trainer.model, names)
    replacement.track_range(settings.range_limit if settings.range_weight else None)
    trainer.optimizers = {
        "weights": _weights_optimizer(trainer.model, settings),
        "coefficients": _adam(replacement.coefficient_parameters(), settings.coefficient_rate),
        "aux": _adam(replacement.aux_parameters(), settings.aux_rate),
    }
    if not _resume_(trainer):
        stages = {"baseline": accuracy(trainer.teacher.model, trainer.held_out, trainer.dataset, trainer.processes)}
        calibrate_(trainer)
        with _masks_at_budget(replacement):
            stages["calibrated"] = _held_out_accuracy(trainer)
        trainer.run.record(event="stages", step=0, **stages)
    if settings.epochs == 0:
        without_training_(trainer)
    trainer.wrapped = trainer.processes.wrap(trainer.model)
    fit_(trainer)
    if not replacement.frozen:
        flips = replacement.finalize_()
        trainer.run.record(event="stages", step=trainer.step, finalised=_held_out_accuracy(trainer), flips=flips)
    return _finish(trainer, {"teacher": trainer.teacher.model})


def calibrate_(trainer: Trainer) -> None:
    """Fit every channel's polynomial to its distribution, then give aux its first values."""
    settings, replacement, model = trainer.settings, trainer.replacement, trainer.model
    assert isinstance(settings, ReplaceSettings) and replacement is not None
    replacement.calibrate_(model, _calibration_batches(trainer))
    for site in replacement.sites.values():
        # A dead channel has next to no deviation: measured in it, the least change of the weights is a huge one.
        site.set_moments_(site.mean.clone(), site.std.clamp_min(0.1 * float(site.std.median())))
        flatten_(site, 1.0 if settings.curve is None else settings.curve)
    if settings.start == "uniform":
        replacement.start_uniform_(generator("aux", settings.seed))
    elif settings.start == "sensitivity":
        draw = generator("labels", settings.seed, trainer.processes.rank)

        def surprise(logits: Tensor, labels: Tensor) -> Tensor:
            # Labels drawn from the network's own softened answers: the mean square of this gradient is the Fisher
            # information, so scores rank elements by the distillation loss that replacing each alone would cost.
            soft = F.softmax(logits.detach() / settings.temperature, dim=1).cpu()
            drawn = torch.multinomial(soft, 1, generator=draw)[:, 0].to(logits.device)
            return F.cross_entropy(logits / settings.temperature, drawn)

        replacement.start_from_(replacement.sensitivity_(model, _calibration_batches(trainer), surprise))


@torch.no_grad()
def flatten_(site: MaskedActivation, share: float) -> None:
    """Scale a site's curvature k2 by `share`; mean and slope of its polynomial stay as they are."""
    if site.degree >= 2 and share < 1:
        curve = (F.softplus(site.coefficients[2].double()) * share).clamp_min(1e-8)
        site.coefficients[2] = curve + torch.log(-torch.expm1(-curve))  # inverse of softplus


def without_training_(trainer: Trainer) -> None:
    """Masks at the budget at once; then moments and batch-norm statistics of the network as it now is, in turns."""
    replacement = trainer.replacement
    assert replacement is not None
    replacement.finalize_()
    for _ in range(3):
        reestimate_batch_norm_(trainer.model, (x for x, _ in _calibration_batches(trainer)))
        trainer.processes.average_buffers_(trainer.model)
        replacement.calibrate_(trainer.model, _calibration_batches(trainer))


def fit_(trainer: Trainer) -> None:
    """Take every step from trainer.step to the end."""
    settings, replacement = trainer.settings, trainer.replacement
    progress = Progress(trainer.processes.first, trainer.steps_per_epoch, settings)
    for step in range(trainer.step, trainer.total_steps):
        started = time.perf_counter()
        if isinstance(settings, ReplaceSettings):
            _choose_masks_(trainer, step)
        _set_rates_(trainer, step)
        loss, right, seen = _gradients_(trainer, step)
        for optimizer in trainer.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if isinstance(settings, ReplaceSettings) and replacement is not None and not replacement.frozen:
            _follow_aux_(trainer, step)
        if trainer.average is not None:
            trainer.average.update_(trainer.model)
        trainer.step = step + 1
        sums = trainer.sums
        sums.loss, sums.right, sums.seen = sums.loss + loss * seen, sums.right + right, sums.seen + seen
        sums.seconds += time.perf_counter() - started
        progress.show(trainer.step, sums.loss / sums.seen, 100 * sums.right / sums.seen, trainer.count)
        if trainer.step % trainer.steps_per_epoch == 0:
            progress.close_epoch(_end_epoch(trainer))
        if trainer.step % trainer.steps_per_epoch == 0 or trainer.step % settings.checkpoint_every == 0:
            _checkpoint(trainer)
    progress.close()


def _choose_masks_(trainer: Trainer, step: int) -> None:
    """Masks of this step under the ramp rule; the freeze under either rule."""
    settings, replacement = trainer.settings, trainer.replacement
    assert isinstance(settings, ReplaceSettings) and replacement is not None and replacement.budget is not None
    if replacement.frozen:
        return
    if step >= trainer.freeze_step:
        before = _held_out_accuracy(trainer)
        trainer.sums.flips += replacement.finalize_()
        trainer.run.record(event="stages", step=step, replaced=before, frozen=_held_out_accuracy(trainer))
        del trainer.optimizers["aux"]
        trainer.wrapped = trainer.processes.wrap(trainer.model)  # gradients of aux are no longer exchanged
        if settings.average:
            trainer.average = WeightAverage(trainer.model, settings.average)
    elif settings.budget_rule == "ramp":
        kept = ramp(step, trainer.freeze_step, replacement.total, replacement.budget)
        trainer.sums.flips += replacement.step_exact_(kept)


def _follow_aux_(trainer: Trainer, step: int) -> None:
    """The paper's mask step, and its first epochs in which coefficients still follow the running moments."""
    settings, replacement = trainer.settings, trainer.replacement
    assert isinstance(settings, ReplaceSettings) and replacement is not None
    if settings.budget_rule == "penalty":
        trainer.sums.flips += replacement.step()
    if settings.refresh_epochs:
        refreshing = step + 1 < settings.refresh_epochs * trainer.steps_per_epoch
        replacement.tracking = refreshing
        if refreshing and (step + 1) % 20 == 0:
            replacement.refresh_coefficients_()


def _set_rates_(trainer: Trainer, step: int) -> None:
    factor = cosine(step, trainer.total_steps, trainer.settings.warmup or 0.0)
    for optimizer in trainer.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def _gradients_(trainer: Trainer, step: int) -> tuple[float, int, int]:
    """Forward and backward over this process's share of the step's batch: mean loss, right answers, images."""
    settings, processes = trainer.settings, trainer.processes
    epoch, within = divmod(step, trainer.steps_per_epoch)
    size = min(settings.batch_size, len(trainer.dataset.train))
    order = epoch_order(len(trainer.dataset.train), settings.seed, epoch)
    index = order[within * size : (within + 1) * size]
    torch.manual_seed(
        int(torch.randint(2**62, (), generator=generator("dropout", settings.seed, step, processes.rank)))
    )
    trainer.wrapped.train()
    loss_sum, right, seen = 0.0, 0, 0
    for part in range(settings.accumulate):
        share = processes.share(len(index), part, settings.accumulate)
        x, y = data.training_batch(trainer.dataset, index, (settings.seed, step), share, settings.augment)
        x, y = _to_device(x, trainer), y.to(processes.device)
        last = part == settings.accumulate - 1
        no_sync = getattr(trainer.wrapped, "no_sync", nullcontext)
        with nullcontext() if last else no_sync():
            loss, logits = _loss(trainer, x, y)
            (loss * (len(y) * processes.count / len(index))).backward()
        loss_sum += float(loss.detach()) * len(y)
        right, seen = right + int((logits.detach().argmax(1) == y).sum()), seen + len(y)
    clip = getattr(settings, "clip", None)
    if clip:
        weights = [p for group in trainer.optimizers["weights"].param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(weights, clip)
    return loss_sum / seen, right, seen


def _loss(trainer: Trainer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The step's loss on some images, and the logits."""
    settings, replacement = trainer.settings, trainer.replacement
    # Autocast is opened for each step: kept open longer it would go on using weights cast before an update.
    with torch.autocast(x.device.type, torch.bfloat16, enabled=_bfloat16(settings, x.device)):
        logits = trainer.wrapped(x)
        answers = trainer.teacher(x) if trainer.teacher is not None else None
    logits = logits.float()
    if isinstance(settings, TrainSettings):
        return F.cross_entropy(logits, y, label_smoothing=settings.label_smoothing), logits
    assert replacement is not None and answers is not None and trainer.tap is not None
    features = trainer.tap.take()
    share = settings.distill or 0.0
    loss = (1 - share) * F.cross_entropy(logits, y)
    if share:
        loss = loss + share * distillation(logits, answers[0].float(), settings.temperature)
    if settings.features and features:
        loss = loss + settings.features * feature_distance(features, answers[1])
    if settings.range_weight:
        loss = loss + settings.range_weight * replacement.range_penalty()
    if settings.budget_rule == "penalty":
        loss = loss + replacement.penalty(settings.penalty_weight or 0.0)
    return loss, logits


def _end_epoch(trainer: Trainer) -> dict[str, Any]:
    """Measure on held-out images, log, and keep the best model whose masks are final."""
    processes, sums, settings = trainer.processes, trainer.sums, trainer.settings
    processes.average_buffers_(trainer.model)
    final = trainer.replacement is None or trainer.replacement.frozen
    with trainer.average.applied(trainer.model) if trainer.average is not None else nullcontext():
        measured = _held_out_accuracy(trainer)
        better = final and measured >= trainer.best
        if better and processes.first:
            save_tensors(trainer.run.directory / "best.safetensors", averaged_state(trainer.model), {})
    trainer.best = measured if better else trainer.best
    loss, right, seen = processes.total(sums.loss, sums.right, sums.seen)
    entry = {
        "event": "epoch",
        "step": trainer.step,
        "epoch": trainer.step // trainer.steps_per_epoch,
        "loss": round(loss / seen, 5),
        "train_accuracy": round(100 * right / seen, 3),
        "held_out_accuracy": round(measured, 3),
        "learning_rate": trainer.optimizers["weights"].param_groups[0]["lr"],
        "images_per_second": round(seen / max(sums.seconds, 1e-9), 1),
        "seconds": round(sums.seconds, 2),
    }
    if trainer.replacement is not None:
        entry |= {"relus": trainer.replacement.count(), "flips": sums.flips}
    trainer.run.record(**entry)
    trainer.sums = EpochSums()
    if settings.tensorboard and processes.first:
        from autorep.training.progress import write_tensorboard

        write_tensorboard(trainer.run.directory, entry)
    return entry


def _finish(trainer: Trainer, others: dict[str, nn.Module]) -> dict[str, Any]:
    """Take the best weights, re-estimate batch norm, read the test images once, write the finished model."""
    settings, processes, run = trainer.settings, trainer.processes, trainer.run
    if trainer.best >= 0:
        if processes.count > 1:
            torch.distributed.barrier()  # the first process has written best.safetensors
        best, _ = load_tensors(run.directory / "best.safetensors")
        trainer.model.load_state_dict(best, strict=False)
    if trainer.replacement is not None and getattr(settings, "reestimate", False) and settings.epochs:
        reestimate_batch_norm_(trainer.model, (x for x, _ in _calibration_batches(trainer)))
        processes.average_buffers_(trainer.model)
    result: dict[str, Any] = {"event": "result", "step": trainer.step, "held_out_accuracy": _held_out_accuracy(trainer)}
    test = trainer.dataset.test
    for name, model in {"": trainer.model, **{f"{name}_": model for name, model in others.items()}}.items():
        result[f"{name}test_accuracy"] = accuracy(model, test, trainer.dataset, processes)
    if trainer.replacement is not None:
        result |= {"relus": trainer.replacement.count(), "relus_total": trainer.replacement.total}
    epochs = [entry["seconds"] for entry in run.log if entry["event"] == "epoch"]
    result |= {"epochs": settings.epochs, "seconds": round(sum(epochs), 2)}
    run.record(**result)
    if processes.first:
        save_model(run.directory / "model", trainer.model, _describe(trainer, result))
        if settings.plots:
            from autorep.training.plots import plot_run

            plot_run(run.directory)
    processes.close()
    return result


def _describe(trainer: Trainer, result: dict[str, Any]) -> dict[str, Any]:
    dataset = trainer.dataset
    return {
        "model": trainer.settings.model,
        "num_classes": len(dataset.classes),
        "input_shape": list(dataset.shape),
        "data": dataset.name,
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "result": {key: value for key, value in result.items() if key != "event"},
    }


def _prepare(settings: TrainSettings | ReplaceSettings) -> Trainer:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    processes = parallel.join(settings.device)
    dataset = data.load(settings.data, settings.data_path, settings.image_size)
    dataset, held_out = dataset.held_out(round(settings.held_out * len(dataset.train)), settings.seed)
    torch.manual_seed(settings.seed)
    model = models.create(settings.model, len(dataset.classes)).to(processes.device)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    run = Run.start(settings.out, settings, settings.resume, processes.first)
    return Trainer(settings, run, processes, dataset, held_out, model)


def _weights_optimizer(model: nn.Module, settings: TrainSettings | ReplaceSettings) -> torch.optim.Optimizer:
    """SGD or Adam over weights (decayed) and over biases and batch norm (not); the rate follows `peak`."""
    apart = {id(p) for m in model.modules() if isinstance(m, MaskedActivation) for p in m.parameters()}
    own = [p for p in model.parameters() if id(p) not in apart]
    rate = settings.learning_rate
    assert rate is not None
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p.ndim > 1], "weight_decay": settings.weight_decay, "peak": rate},
        {"params": [p for p in own if p.ndim <= 1], "peak": rate},
    ]
    if isinstance(settings, ReplaceSettings) and settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=rate)
    momentum = settings.momentum if isinstance(settings, TrainSettings) else 0.9
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0)


def _adam(parameters: list[nn.Parameter], rate: float | None) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": parameters, "peak": rate or 0.0}])


def _budget(budget: float, total: int) -> int:
    """A share below 1 as a number of ReLUs; otherwise the number itself, which must be whole."""
    if 0 < budget < 1:
        return round(budget * total)
    if budget != int(budget):
        raise ConfigError(f"budget = {budget}: give a whole number of ReLUs up to {total}, or a share below 1")
    return int(budget)


def _calibration_batches(trainer: Trainer) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's share of the calibration images, normalised, not augmented."""
    count = min(getattr(trainer.settings, "calibration_images", 2048), len(trainer.dataset.train))
    index = epoch_order(len(trainer.dataset.train), trainer.settings.seed, -1)[:count]
    own = data.Subset(trainer.dataset.train, index[trainer.processes.rank :: trainer.processes.count])
    for x, y in data.evaluation_batches(own, trainer.dataset, 256):
        yield _to_device(x, trainer), y.to(trainer.processes.device)


def _held_out_accuracy(trainer: Trainer) -> float:
    return accuracy(trainer.model, trainer.held_out, trainer.dataset, trainer.processes)


@contextmanager
def _masks_at_budget(replacement: Replacement) -> Iterator[None]:
    """The best masks at the budget inside, the former ones again afterwards."""
    masks = {name: site.mask.clone() for name, site in replacement.sites.items()}
    assert replacement.budget is not None
    replacement.step_exact_(replacement.budget)
    yield
    for name, site in replacement.sites.items():
        site.mask.copy_(masks[name])


def _to_device(x: Tensor, trainer: Trainer) -> Tensor:
    layout = torch.channels_last if trainer.settings.channels_last else torch.contiguous_format
    return x.to(trainer.processes.device).contiguous(memory_format=layout)


def _bfloat16(settings: RunSettings, device: torch.device) -> bool:
    return settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")


def _checkpoint(trainer: Trainer) -> None:
    tensors = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
    for name, optimizer in trainer.optimizers.items():
        tensors |= optimizer_tensors(optimizer, f"optimizer.{name}")
    if trainer.average is not None:
        tensors |= {f"average.{name}": value for name, value in trainer.average.state.items()}
    state = {
        "step": trainer.step,
        "best": trainer.best,
        "sums": dataclasses.asdict(trainer.sums),
        "average_count": trainer.average.count if trainer.average is not None else None,
        "log_lines": len(trainer.run.log),
    }
    trainer.run.save_checkpoint(tensors, state)


def _resume_(trainer: Trainer) -> bool:
    """Continue from the run's checkpoint when settings ask for it and there is one."""
    found = trainer.run.load_checkpoint() if trainer.settings.resume else None
    if found is None:
        return False
    tensors, state = found
    models.load_weights_(trainer.model, _with_prefix(tensors, "model."))
    if trainer.replacement is not None and trainer.replacement.frozen:
        del trainer.optimizers["aux"]
    for name, optimizer in trainer.optimizers.items():
        load_optimizer_(optimizer, f"optimizer.{name}", tensors)
    if state["average_count"] is not None:
        assert isinstance(trainer.settings, ReplaceSettings) and trainer.settings.average
        trainer.average = WeightAverage(trainer.model, trainer.settings.average)
        trainer.average.state = _with_prefix(tensors, "average.")
        trainer.average.count = state["average_count"]
    trainer.step, trainer.best = state["step"], state["best"]
    trainer.sums = EpochSums(**state["sums"])
    trainer.run.rewind(state["log_lines"])
    return True


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
