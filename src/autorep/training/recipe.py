"""The two programs of training: a baseline, and a replacement. Read this file first, from top to bottom.

Both are a loop over `Trainer.steps`; what they share (batches, epochs, checkpoints) is in `trainer`. What a replacement
does beside the task's loss is its `Course`, the same object that a library user's own loop runs.

Everything random is a function of (seed, step), so a run can be interrupted anywhere and continued bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep import data, models
from autorep.compiler.compile import compile_program, measure_ranges
from autorep.data.augment import epoch_order, generator
from autorep.errors import ConfigError, RangeError, TraceError, UnsupportedOpError
from autorep.modes import Program
from autorep.replacement import Replacement, replace_activations_
from autorep.replacement.averaging import WeightAverage
from autorep.replacement.course import Course
from autorep.replacement.functions import function
from autorep.replacement.reconstruction import fit_without_training_
from autorep.replacement.schedule import cosine
from autorep.replacement.softened import distillation
from autorep.settings import warn
from autorep.training.compiled import RANGE_IMAGES
from autorep.training.distillation import FeatureTap, Teacher, feature_distance
from autorep.training.evaluate import accuracy
from autorep.training.prices import prices
from autorep.training.runs import load_optimizer_, optimizer_tensors
from autorep.training.saved import load_model, save_model
from autorep.training.settings import ReplaceSettings, TrainSettings
from autorep.training.shifts import lost, pixels_of, reach_of
from autorep.training.trainer import Trainer, prepare, set_rate_, weights_optimizer, with_prefix

LOST = 1e-4  # share of its own training images that a finished network may lose
_CALIBRATION_BATCH = 256


def train_baseline(settings: TrainSettings) -> dict[str, Any]:
    """Train an all-ReLU network; the finished model is in settings.out. Returns the last line of the log."""
    trainer = prepare(settings)
    if settings.weights is not None:
        models.load_weights_(trainer.model, settings.weights)
    weights = list(trainer.model.parameters())
    optimizer = weights_optimizer(weights, settings.learning_rate, settings.weight_decay, settings.momentum)
    if restored := trainer.restore_():
        load_optimizer_(optimizer, "optimizer.weights", restored[0])
    trainer.wrapped = trainer.processes.wrap(trainer.model)
    teacher = None if settings.teacher is None else _other_teacher(trainer, settings.teacher)

    def loss_of(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        answers = None
        if teacher is not None:
            with trainer.autocast():
                answers = teacher.answers(x)  # of the picture in full size
        epoch = trainer.step // trainer.steps_per_epoch
        if epoch < len(settings.small_sizes):
            side = settings.small_sizes[epoch]
            x = trainer.place(F.interpolate(x, (side, side), mode="bilinear", antialias=True))
        with trainer.autocast():
            logits = trainer.wrapped(x).float()
        loss = F.cross_entropy(logits, y, label_smoothing=settings.label_smoothing)
        return (loss if answers is None else _distilled(loss, logits, answers, settings)), logits

    def store() -> None:
        trainer.store(optimizer_tensors(optimizer, "optimizer.weights"), {})

    for step in trainer.steps(store, facts=lambda: {"learning_rate": optimizer.param_groups[0]["lr"]}):
        set_rate_(optimizer, cosine(step, trainer.total_steps, settings.warmup))
        trainer.gradients_(step, loss_of)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    trainer.take_best_()
    return _finish(trainer, {}, _ranges(trainer))


def replace(settings: ReplaceSettings) -> dict[str, Any]:
    """Replace a trained network's activations down to the budget; returns the last line of the log."""
    if settings.weights is None:
        raise ConfigError("replacement starts from a trained network: give --weights FILE (see `autorep train`)")
    trainer = prepare(settings)
    models.load_weights_(trainer.model, settings.weights)
    stages = models.spec(settings.model).stages
    teacher = Teacher(trainer.model, stages)
    handle = _replace_activations_(trainer, settings)
    if settings.start is not None:
        _take_over_(trainer, handle, settings.start)
    if settings.epochs == 0:
        _without_training_(trainer, settings)
        return _finish_replacement(trainer, settings, handle, teacher)
    tap = FeatureTap(trainer.model, stages)
    course = handle.course = _course(trainer, settings, handle, teacher)
    weights = handle.weights()
    optimizer = weights_optimizer(weights, settings.learning_rate, settings.weight_decay, kind=settings.optimizer)
    if restored := trainer.restore_():
        _restore_(trainer, course, optimizer, *restored)
    else:
        baseline = accuracy(teacher.model, trainer.held_out, trainer.dataset, trainer.processes)
        course.begin_()
        with _masks_at_budget(handle):
            first = "started" if settings.start is not None else "calibrated"
            trainer.run.record(event="stages", step=0, baseline=baseline, **{first: trainer.held_out_accuracy()})
    trainer.wrapped = trainer.processes.wrap(trainer.model)

    def loss_of(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with trainer.autocast():
            logits = trainer.wrapped(x).float()
            answers, answer_features = teacher(x)
        features = tap.take()
        loss = _distilled(F.cross_entropy(logits, y), logits, answers, settings)
        if settings.features and features and (settings.features_until == "end" or not handle.frozen):
            loss = loss + settings.features * feature_distance(features, answer_features)
        return loss + course.loss(), logits

    def facts() -> dict[str, Any]:
        rate = optimizer.param_groups[0]["lr"]
        return {"learning_rate": rate, "relus": handle.count(), "flips": trainer.sums.flips, "final": course.settled}

    for step in trainer.steps(lambda: _store(trainer, course, optimizer), facts, course.averaged):
        set_rate_(optimizer, cosine(step, trainer.total_steps, settings.warmup))
        trainer.gradients_(step, loss_of)
        if settings.clip:
            nn.utils.clip_grad_norm_(weights, settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        moving = not handle.frozen
        trainer.sums.flips += course.step()
        if moving and handle.frozen:
            trainer.run.record(event="stages", step=step + 1, frozen=trainer.held_out_accuracy())
            handle.drop_aux_gradients_()  # and exchange them no longer
            trainer.wrapped = trainer.processes.wrap(trainer.model)
    _settle_(trainer, course)
    course.end_()
    trainer.take_best_()
    return _finish_replacement(trainer, settings, handle, teacher)


def _distilled(loss: Tensor, logits: Tensor, answers: Tensor, settings: TrainSettings | ReplaceSettings) -> Tensor:
    """The labels' loss and the distance to the teacher's answers, weighed as the settings say."""
    loss = (1 - settings.distill) * loss
    if settings.distill:
        loss = loss + settings.distill * distillation(logits, answers.float(), settings.temperature)
    return loss


def _other_teacher(trainer: Trainer, path: Path) -> Teacher:
    """A finished model of another run that a baseline learns from; it must know the same classes and normalisation."""
    saved, dataset = load_model(path), trainer.dataset
    own = {"classes": list(dataset.classes), "mean": list(dataset.mean), "std": list(dataset.std)}
    for name, value in own.items():
        if saved.info[name] != value:
            raise ConfigError(
                f"teacher = {path} ({saved.title}) has other {name} than {dataset.name}; give a model trained on it"
            )
    layout = torch.channels_last if trainer.settings.channels_last else torch.contiguous_format
    teacher = saved.model.to(trainer.processes.device).to(memory_format=layout)  # type: ignore[call-overload]  # valid
    return Teacher(teacher, ())


def _replace_activations_(trainer: Trainer, settings: ReplaceSettings) -> Replacement:
    """Put a masked activation at every call site, and set the budget."""
    handle = replace_activations_(
        trainer.model,
        torch.zeros(1, *trainer.dataset.shape, device=trainer.processes.device),
        kinds=settings.kinds,
        degree=function(settings.function).degree,
        polynomial=function(settings.function).polynomial,
        hysteresis=settings.hysteresis,
        surrogate=settings.surrogate,
        floor=settings.floor,
    )
    handle.budget = settings.budget
    return handle


def _take_over_(trainer: Trainer, handle: Replacement, path: Path) -> None:
    """Weights, polynomials and masks of a replaced model."""
    saved = load_model(path)
    if saved.replacement is None:
        raise ConfigError(f"start = {path}: no activation of this model is replaced; give it as --weights")
    kept = saved.replacement.count()
    if kept != handle.budget:
        raise ConfigError(
            f"start = {path} keeps {kept:,} ReLUs and the budget is {handle.budget:,}; give --budget {kept}"
        )
    models.load_weights_(trainer.model, saved.model.state_dict())
    handle.freeze_()


def _calibration_batches(trainer: Trainer, settings: ReplaceSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's share of the calibration images, normalised, not augmented."""
    processes, dataset = trainer.processes, trainer.dataset
    order = epoch_order(len(dataset.train), settings.seed, -1)[: settings.calibration_images]
    own = data.Subset(dataset.train, order[processes.rank :: processes.count])
    for x, y in data.evaluation_batches(own, dataset, _CALIBRATION_BATCH):
        yield trainer.place(x), y.to(processes.device)


def _course(trainer: Trainer, settings: ReplaceSettings, handle: Replacement, teacher: Teacher) -> Course:
    """The replacement's course, told what only training knows."""
    example = torch.zeros(2, *trainer.dataset.shape)
    return Course(
        trainer.model,
        handle,
        lambda: _calibration_batches(trainer, settings),
        trainer.total_steps,
        settings,
        epoch_steps=trainer.steps_per_epoch,
        teacher=teacher.answers,
        measure=trainer.held_out_accuracy,
        generator=lambda label, *key: generator(label, settings.seed, *key),
        prices=lambda: prices(trainer.model, handle, example, settings.latency, settings.link),
    )


def _without_training_(trainer: Trainer, settings: ReplaceSettings) -> None:
    """Down to the budget by unlabelled calibration images alone.

    Several processes each fit on their own images; wrapping the model afterwards gives all the first one's result.
    """
    started = time.perf_counter()
    images = torch.cat([x for x, _ in _calibration_batches(trainer, settings)])
    fit_without_training_(trainer.model, trainer.place(images), precision=trainer.precision, seed=settings.seed)
    seconds = round(time.perf_counter() - started, 2)
    trainer.wrapped = trainer.processes.wrap(trainer.model)
    trainer.run.record(event="stages", step=0, reconstructed=trainer.held_out_accuracy(), seconds=seconds)


def _settle_(trainer: Trainer, course: Course) -> None:
    """Masks at exactly the budget where the method did not end there by itself."""
    handle = course.handle
    if handle.frozen:
        return
    final = course.selection.final_count(course.ctx)
    excess = handle.count() - final
    flips = handle.settle_(final)
    if abs(excess) > 0.01 * handle.total:
        side, done = ("above", "cut") if excess > 0 else ("below", "put back")
        warn(f"the run ended {abs(excess):,} ReLUs {side} its budget of {final:,}; they were {done} without training")
    trainer.run.record(event="stages", step=trainer.step, finalised=trainer.held_out_accuracy(), flips=flips)


def _store(trainer: Trainer, course: Course, optimizer: torch.optim.Optimizer) -> None:
    tensors = optimizer_tensors(optimizer, "optimizer.weights")
    for name, own in course.optimizers.items():
        tensors |= optimizer_tensors(own, f"optimizer.{name}")
    average = course.average
    if average is not None:
        tensors |= {f"average.{name}": value for name, value in average.state.items()}
    state = {"selection": course.selection.state, "average_count": average.count if average is not None else None}
    trainer.store(tensors, state)


def _restore_(
    trainer: Trainer,
    course: Course,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
) -> None:
    average = None
    if state["average_count"] is not None:
        average = WeightAverage(trainer.model, course.settings.average)
        average.state, average.count = with_prefix(tensors, "average."), state["average_count"]
    course.resume_(trainer.step, state["selection"], average)
    for name, one in {"weights": optimizer, **course.optimizers}.items():
        load_optimizer_(one, f"optimizer.{name}", tensors)


def _finish_replacement(
    trainer: Trainer, settings: ReplaceSettings, handle: Replacement, teacher: Teacher
) -> dict[str, Any]:
    """Count how many of its own training images the network loses, and write everything."""
    ranges = _ranges(trainer)
    facts = _facts_of_replacement(trainer, handle, teacher, _program(trainer, ranges), settings.lost_among)
    return _finish(trainer, facts, ranges)


def _facts_of_replacement(
    trainer: Trainer, handle: Replacement, teacher: Teacher, program: Program | None, lost_among: int
) -> dict[str, Any]:
    """Counts, the all-ReLU network's test accuracy, and how many of its own training images the network loses."""
    test = accuracy(teacher.model, trainer.dataset.test, trainer.dataset, trainer.processes)
    train = trainer.dataset.train
    among = min(lost_among or len(train), len(train))
    own = data.Subset(train, torch.arange(trainer.processes.rank, among, trainer.processes.count))
    found = reach_of(trainer.model, pixels_of(own, len(own)), trainer.dataset)
    wrong = ~torch.isfinite(found.logits.cpu()).all(1)
    if program is not None:
        wrong |= lost(program, pixels_of(own, len(own)))
    gone, far, seen = map(int, trainer.processes.total(int(wrong.sum()), int(found.far.sum()), len(own)))
    return {
        "teacher_test_accuracy": test,
        "relus": handle.count(),
        "relus_total": handle.total,
        "lost": gone,
        "far": far,
        "lost_of": seen,
        "finished": gone <= LOST * seen,
    }


def _finish(trainer: Trainer, facts: dict[str, Any], ranges: dict[str, Any] | None) -> dict[str, Any]:
    """Read the test images once, write the result and the model."""
    settings, processes, run, dataset = trainer.settings, trainer.processes, trainer.run, trainer.dataset
    seconds = sum(entry.get("seconds", 0.0) for entry in run.log)
    result: dict[str, Any] = {
        "event": "result",
        "step": trainer.step,
        "held_out_accuracy": trainer.held_out_accuracy(),
        "test_accuracy": accuracy(trainer.model, dataset.test, dataset, processes),
        **facts,
        "epochs": settings.epochs,
        "seconds": round(seconds, 2),
    }
    run.record(**result)
    if processes.first:
        description = {
            "model": settings.model,
            "num_classes": len(dataset.classes),
            "input_shape": list(dataset.shape),
            "data": dataset.name,
            "classes": list(dataset.classes),
            "mean": list(dataset.mean),
            "std": list(dataset.std),
            "preprocessing": dataset.preprocessing.facts(),
            **({} if ranges is None else {"ranges": ranges}),
            "result": {key: value for key, value in result.items() if key != "event"},
        }
        save_model(run.directory / "model", trainer.model, description)
        if settings.plots and settings.epochs:
            from autorep.training.plots import plot_run

            plot_run(run.directory)
    processes.close()
    return result


def _ranges(trainer: Trainer) -> dict[str, Any] | None:
    """How far every layer reaches on some training images, so that the model compiles later without any.

    None for a network that cannot be compiled as it is; `autorep check` and `compile` say why.
    """
    dataset = trainer.dataset
    try:
        return measure_ranges(trainer.model, pixels_of(dataset.train, RANGE_IMAGES, 64), (dataset.mean, dataset.std))
    except (UnsupportedOpError, TraceError, RangeError):
        return None


def _program(trainer: Trainer, ranges: dict[str, Any] | None) -> Program | None:
    """What the network becomes with these ranges, which says how far its values may go."""
    dataset = trainer.dataset
    if ranges is None:
        return None
    few = pixels_of(dataset.train, 4)
    try:
        return compile_program(trainer.model, few, normalize=(dataset.mean, dataset.std), ranges=ranges)
    except RangeError:
        return None


@contextmanager
def _masks_at_budget(handle: Replacement) -> Iterator[None]:
    """The best masks at the budget inside, the former ones again afterwards."""
    if handle.frozen:
        yield
        return
    masks = {name: site.mask.clone() for name, site in handle.sites.items()}
    handle.step_exact_(handle.require_budget())
    yield
    for name, site in handle.sites.items():
        site.mask.copy_(masks[name])
