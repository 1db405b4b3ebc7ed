"""The recipe: baseline, or calibrate → replace → freeze → fine-tune, in one loop. Read this file first.

`train_baseline` and `replace` set up a Trainer and hand it to `fit_`, whose body is one optimiser step:

1. choose the masks of this step (ramp rule), or let them follow aux after the step (penalty rule);
2. forward, loss = distillation + labels + features + range + penalty, backward;
3. optimiser steps for weights, coefficients and auxiliary parameters;
4. after the freeze, average the weights; after every epoch, measure on held-out images.

Everything random is a function of (seed, step), so a run can be interrupted anywhere and continued bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep import data, models
from autorep.data.augment import epoch_order, generator
from autorep.errors import ConfigError
from autorep.replacement import replace_activations_
from autorep.replacement.sites import find_sites
from autorep.training.averaging import WeightAverage, averaged_state, reestimate_batch_norm_
from autorep.training.correction import correct_
from autorep.training.distillation import FeatureTap, Teacher, distillation, feature_distance, stage_names
from autorep.training.evaluate import accuracy
from autorep.training.progress import Progress, write_tensorboard
from autorep.training.runs import load_tensors, save_tensors
from autorep.training.saved import save_model
from autorep.training.schedule import cosine, opening, ramp
from autorep.training.settings import ReplaceSettings, TrainSettings
from autorep.training.trainer import (
    EpochSums,
    Replacing,
    Trainer,
    adam,
    prepare,
    restore_,
    store,
    weights_optimizer,
)

_STEADY = 0.1  # least deviation a channel is credited with, as a share of its layer's median
_CORRECTION_PIXELS = 1 << 20  # of the images that a network is corrected on where there is no training
_REFRESH_STEPS = 20  # between two refreshes of the coefficients from running moments


def train_baseline(settings: TrainSettings) -> dict[str, Any]:
    """Train an all-ReLU network; the finished model is in settings.out. Returns the last line of the log."""
    trainer = prepare(settings)
    if settings.weights is not None:
        models.load_weights_(trainer.model, settings.weights)
    trainer.optimizers = {"weights": weights_optimizer(trainer.model, settings)}
    restore_(trainer)
    trainer.wrapped = trainer.processes.wrap(trainer.model)
    fit_(trainer)
    return _finish(trainer)


def replace(settings: ReplaceSettings) -> dict[str, Any]:
    """Replace a trained network's activations down to the budget; returns the last line of the log."""
    settings = settings.resolved(_activation_layers(settings))
    if settings.weights is None:
        raise ConfigError("replacement starts from a trained network: give --weights FILE (see `autorep train`)")
    trainer = prepare(settings)
    models.load_weights_(trainer.model, settings.weights)
    replacing = trainer.replacing = _replace_activations_(trainer, settings)
    trainer.optimizers = {
        "weights": weights_optimizer(trainer.model, settings),
        "coefficients": adam(replacing.handle.coefficient_parameters(), settings.coefficient_rate),
        "aux": adam(replacing.handle.aux_parameters(), settings.aux_rate),
    }
    if not restore_(trainer):
        baseline = accuracy(replacing.teacher.model, trainer.held_out, trainer.dataset, trainer.processes)
        calibrate_(trainer, replacing)
        with _masks_at_budget(replacing):
            trainer.run.record(event="stages", step=0, baseline=baseline, calibrated=trainer.held_out_accuracy())
    if settings.epochs == 0:
        without_training_(trainer, replacing)
    trainer.wrapped = trainer.processes.wrap(trainer.model)
    fit_(trainer)
    if not replacing.handle.frozen:
        flips = replacing.handle.finalize_()
        finalised = trainer.held_out_accuracy()
        trainer.run.record(event="stages", step=trainer.step, finalised=finalised, flips=flips)
    return _finish(trainer)


def _activation_layers(settings: ReplaceSettings) -> int:
    """How many activation layers the network has, to choose settings by its depth."""
    network = models.spec(settings.model)
    example = torch.zeros(1, network.channels, network.image_size, network.image_size)
    return len(find_sites(models.create(settings.model).eval(), example, settings.kinds).sites)


def _replace_activations_(trainer: Trainer, settings: ReplaceSettings) -> Replacing:
    """Keep a copy of the network as teacher, then put a masked activation at every call site."""
    names = stage_names(trainer.model)
    teacher = Teacher(trainer.model, names)
    handle = replace_activations_(
        trainer.model,
        torch.zeros(1, *trainer.dataset.shape, device=trainer.processes.device),
        kinds=settings.kinds,
        degree=settings.degree,
        hysteresis=settings.hysteresis,
        surrogate=settings.surrogate,
        floor=settings.floor,
    )
    budget = handle.budget = _whole_budget(settings.budget, handle.total)
    handle.track_range(settings.range_limit if settings.range_weight else None)
    return Replacing(settings, handle, budget, teacher, FeatureTap(trainer.model, names))


def calibrate_(trainer: Trainer, replacing: Replacing) -> None:
    """Fit every channel's polynomial to its distribution, then give aux its first values."""
    settings, handle = replacing.settings, replacing.handle
    fit_polynomials_(trainer, replacing, settings.first_curve)
    if settings.start == "uniform":
        handle.start_uniform_(generator("aux", settings.seed))
    elif settings.start == "sensitivity":
        draw = generator("labels", settings.seed, trainer.processes.rank)

        def surprise(logits: Tensor, labels: Tensor) -> Tensor:
            # Labels drawn from the network's own softened answers: the mean square of this gradient is the Fisher
            # information, so scores rank elements by the distillation loss that replacing each alone would cost.
            soft = F.softmax(logits.detach() / settings.temperature, dim=1).cpu()
            drawn = torch.multinomial(soft, 1, generator=draw)[:, 0].to(logits.device)
            return F.cross_entropy(logits / settings.temperature, drawn)

        handle.start_from_(handle.sensitivity_(trainer.model, trainer.calibration_batches(), surprise))


def fit_polynomials_(trainer: Trainer, replacing: Replacing, curve: float) -> None:
    """DaPa's polynomials for the network as it is now, with a share `curve` of their curvature."""
    replacing.handle.calibrate_(trainer.model, trainer.calibration_batches())
    for site in replacing.handle.sites.values():
        # A dead channel has next to no deviation: measured in it, the least change of the weights is a huge one.
        site.set_moments_(site.mean.clone(), site.std.clamp_min(_STEADY * float(site.std.median())), curve)


def without_training_(trainer: Trainer, replacing: Replacing) -> None:
    """Masks at the budget at once; then polynomials and weights corrected by least squares, layer by layer.

    Several processes each correct on their own images; wrapping the model afterwards gives all the first one's result.
    """
    replacing.handle.finalize_()
    images = torch.cat([x for x, _ in trainer.calibration_batches()])
    correct_(trainer.model, images[: max(1, _CORRECTION_PIXELS // images[0, 0].numel())])
    trainer.run.record(event="stages", step=0, corrected=trainer.held_out_accuracy())


def fit_(trainer: Trainer) -> None:
    """Take every step from trainer.step to the end."""
    settings, replacing = trainer.settings, trainer.replacing
    progress = Progress(trainer.processes.first, trainer.steps_per_epoch, settings)
    for step in range(trainer.step, trainer.total_steps):
        started = time.perf_counter()
        if replacing is not None and not replacing.handle.frozen:
            _choose_masks_(trainer, replacing, step)
        _set_rates_(trainer, step)
        loss, right, seen = _gradients_(trainer, step)
        for optimizer in trainer.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if replacing is not None and not replacing.handle.frozen:
            _follow_aux_(trainer, replacing, step)
        if replacing is not None and replacing.average is not None:
            replacing.average.update_()
        trainer.step = step + 1
        sums = trainer.sums
        sums.loss, sums.right, sums.seen = sums.loss + loss * seen, sums.right + right, sums.seen + seen
        sums.seconds += time.perf_counter() - started
        progress.show(trainer.step, sums.loss / sums.seen, 100 * sums.right / sums.seen, trainer.count)
        epoch_ended = trainer.step % trainer.steps_per_epoch == 0
        if epoch_ended:
            progress.close_epoch(_end_epoch(trainer))
        if epoch_ended or trainer.step % settings.checkpoint_every == 0:
            store(trainer)
    progress.close()


def _choose_masks_(trainer: Trainer, replacing: Replacing, step: int) -> None:
    """Masks of this step under the ramp rule; the freeze under either rule."""
    settings, handle = replacing.settings, replacing.handle
    handle.tracking = step < (settings.refresh_epochs or 0.0) * trainer.steps_per_epoch
    if step >= trainer.freeze_step:
        before = trainer.held_out_accuracy()
        trainer.sums.flips += handle.finalize_()
        trainer.run.record(event="stages", step=step, replaced=before, frozen=trainer.held_out_accuracy())
        del trainer.optimizers["aux"]
        trainer.wrapped = trainer.processes.wrap(trainer.model)  # gradients of aux are no longer exchanged
        if settings.average:
            replacing.average = WeightAverage(trainer.model, settings.average)
    elif settings.budget_rule == "ramp":
        trainer.sums.flips += handle.step_exact_(ramp(step, trainer.freeze_step, handle.total, replacing.budget))


def _follow_aux_(trainer: Trainer, replacing: Replacing, step: int) -> None:
    """The paper's mask step, and its first epochs in which coefficients still follow the running moments."""
    settings, handle = replacing.settings, replacing.handle
    if settings.budget_rule == "penalty":
        trainer.sums.flips += handle.step()
    if handle.tracking and (step + 1) % _REFRESH_STEPS == 0:
        handle.refresh_coefficients_(settings.first_curve)


def _set_rates_(trainer: Trainer, step: int) -> None:
    factor = cosine(step, trainer.total_steps, trainer.settings.warmup or 0.0)
    for optimizer in trainer.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
    replacing = trainer.replacing
    if replacing is not None and replacing.settings.input_limit:
        limit = replacing.settings.input_limit
        replacing.handle.limit_inputs(opening(step, trainer.freeze_step, trainer.total_steps, limit))


def _gradients_(trainer: Trainer, step: int) -> tuple[float, int, int]:
    """Forward and backward over this process's share of the step's batch: mean loss, right answers, images."""
    settings, processes = trainer.settings, trainer.processes
    epoch, within = divmod(step, trainer.steps_per_epoch)
    size = min(settings.batch_size, len(trainer.dataset.train))
    index = epoch_order(len(trainer.dataset.train), settings.seed, epoch)[within * size : (within + 1) * size]
    dropout = generator("dropout", settings.seed, step, processes.rank)
    torch.manual_seed(int(torch.randint(2**62, (), generator=dropout)))
    trainer.wrapped.train()
    loss_sum, right, seen = 0.0, 0, 0
    for part in range(settings.accumulate):
        share = processes.share(len(index), part, settings.accumulate)
        x, y = data.training_batch(trainer.dataset, index, (settings.seed, step), share, settings.augment)
        if isinstance(settings, TrainSettings) and epoch < len(settings.small_sizes):
            side = settings.small_sizes[epoch]
            x = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
        x, y = trainer.place(x), y.to(processes.device)
        last = part == settings.accumulate - 1
        no_sync = getattr(trainer.wrapped, "no_sync", nullcontext)
        with nullcontext() if last else no_sync():
            loss, logits = _loss(trainer, x, y)
            (loss * (len(y) * processes.count / len(index))).backward()
        loss_sum += float(loss.detach()) * len(y)
        right, seen = right + int((logits.detach().argmax(1) == y).sum()), seen + len(y)
    if isinstance(settings, ReplaceSettings) and settings.clip:
        weights = [p for group in trainer.optimizers["weights"].param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(weights, settings.clip)
    return loss_sum / seen, right, seen


def _loss(trainer: Trainer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The step's loss on some images, and the logits."""
    settings, replacing = trainer.settings, trainer.replacing
    half = settings.precision == "bfloat16" or (settings.precision == "auto" and x.device.type == "cuda")
    # Autocast is opened for each step: kept open longer it would go on using weights cast before an update.
    with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
        logits = trainer.wrapped(x).float()
        if replacing is not None:
            answers, answer_features = replacing.teacher(x)
    if isinstance(settings, TrainSettings):
        return F.cross_entropy(logits, y, label_smoothing=settings.label_smoothing), logits
    assert replacing is not None
    features = replacing.tap.take()
    share = settings.distill or 0.0
    loss = (1 - share) * F.cross_entropy(logits, y)
    if share:
        loss = loss + share * distillation(logits, answers.float(), settings.temperature)
    matching = settings.features_until == "end" or not replacing.handle.frozen
    if settings.features and features and matching:
        loss = loss + settings.features * feature_distance(features, answer_features)
    if settings.range_weight:
        loss = loss + settings.range_weight * replacing.handle.range_penalty()
    if settings.budget_rule == "penalty":
        loss = loss + replacing.handle.penalty(settings.penalty_weight or 0.0)
    return loss, logits


def _end_epoch(trainer: Trainer) -> dict[str, Any]:
    """Measure on held-out images, log, and keep the best model whose masks are final."""
    processes, sums, replacing = trainer.processes, trainer.sums, trainer.replacing
    processes.average_buffers_(trainer.model)
    final = replacing is None or replacing.handle.frozen
    average = replacing.average if replacing is not None else None
    with average.applied() if average is not None else nullcontext():
        measured = trainer.held_out_accuracy()
        if final and measured >= trainer.best:
            trainer.best = measured
            if processes.first:
                save_tensors(trainer.run.directory / "best.safetensors", averaged_state(trainer.model), {})
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
    if replacing is not None:
        entry |= {"relus": replacing.handle.count(), "flips": sums.flips}
    trainer.run.record(**entry)
    trainer.sums = EpochSums()
    if trainer.settings.tensorboard and processes.first:
        write_tensorboard(trainer.run.directory, entry)
    return entry


def _finish(trainer: Trainer) -> dict[str, Any]:
    """Take the best weights, try fresh batch-norm statistics, read the test images once, write the model."""
    settings, processes, run, replacing = trainer.settings, trainer.processes, trainer.run, trainer.replacing
    if trainer.best >= 0:
        if processes.count > 1:
            torch.distributed.barrier()  # the first process has written best.safetensors
        best, _ = load_tensors(run.directory / "best.safetensors")
        trainer.model.load_state_dict(best, strict=False)
    if replacing is not None and replacing.settings.reestimate and settings.epochs:
        _try_fresh_statistics_(trainer)
    test = trainer.dataset.test
    result: dict[str, Any] = {
        "event": "result",
        "step": trainer.step,
        "held_out_accuracy": trainer.held_out_accuracy(),
        "test_accuracy": accuracy(trainer.model, test, trainer.dataset, processes),
    }
    if replacing is not None:
        teacher = accuracy(replacing.teacher.model, test, trainer.dataset, processes)
        count, total = replacing.handle.count(), replacing.handle.total
        result |= {"teacher_test_accuracy": teacher, "relus": count, "relus_total": total}
    seconds = sum(entry["seconds"] for entry in run.log if entry["event"] == "epoch")
    result |= {"epochs": settings.epochs, "seconds": round(seconds, 2)}
    run.record(**result)
    if processes.first:
        save_model(run.directory / "model", trainer.model, _describe(trainer, result))
        if settings.plots and settings.epochs:
            from autorep.training.plots import plot_run

            plot_run(run.directory)
    processes.close()
    return result


def _try_fresh_statistics_(trainer: Trainer) -> None:
    """Re-estimate batch norm, and keep the new statistics only if held-out images do better with them."""
    before = trainer.held_out_accuracy()
    former = {name: value.clone() for name, value in averaged_state(trainer.model).items()}
    reestimate_batch_norm_(trainer.model, (x for x, _ in trainer.calibration_batches()))
    trainer.processes.average_buffers_(trainer.model)
    after = trainer.held_out_accuracy()
    if after <= before:
        trainer.model.load_state_dict(former, strict=False)
    trainer.run.record(event="stages", step=trainer.step, fine_tuned=before, fresh_statistics=after)


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
        "preprocessing": dataset.preprocessing.facts(),
        "result": {key: value for key, value in result.items() if key != "event"},
    }


def _whole_budget(budget: float, total: int) -> int:
    """A share below 1 as a number of ReLUs; otherwise the number itself, which must be whole."""
    if 0 < budget < 1:
        return round(budget * total)
    if budget != int(budget):
        raise ConfigError(f"budget = {budget}: give a whole number of ReLUs up to {total}, or a share below 1")
    return int(budget)


@contextmanager
def _masks_at_budget(replacing: Replacing) -> Iterator[None]:
    """The best masks at the budget inside, the former ones again afterwards."""
    sites = replacing.handle.sites
    masks = {name: site.mask.clone() for name, site in sites.items()}
    replacing.handle.step_exact_(replacing.budget)
    yield
    for name, site in sites.items():
        site.mask.copy_(masks[name])
