"""Training speed: images a second of each kind of step, interleaved in one run.

- baseline: labels only; distillation: labels and the teacher's answers;
- replacement, fine_tuning: the default recipe before and after the freeze (first masks at the exact budget, auxiliary
  parameters and features; then stress; always polynomials, range penalty, input limit, clipping, the average of the
  weights); stress comes in every other step, so two steps are one measurement, of any kind;
- following, penalty: the paper's recipe in its first epoch, whose polynomials follow the running moments, and later;
- default, faithful: a step of either recipe on average, each phase weighed by how long it lasts.

`measure_methods` takes the steps of every method that chooses single ReLUs instead, each before its freeze.

The bars: a replacement step takes at most 1.35 times as long as a distillation step of the same network, and the
default recipe, which also stresses its networks, at most 1.2 times as long as the faithful one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep import _native, models
from autorep.replacement import replace_activations_
from autorep.replacement.course import Course
from autorep.replacement.functions import function
from autorep.replacement.softened import distillation
from autorep.training.distillation import FeatureTap, Teacher, feature_distance
from autorep.training.settings import ReplaceSettings
from autorep.training.trainer import weights_optimizer

PHASES = {"default": ("replacement", "fine_tuning"), "faithful": ("following", "penalty")}
STEPS = ("baseline", "distillation", *PHASES["default"], *PHASES["faithful"])
KINDS = (*STEPS, *PHASES)
METHODS = ("ramp", "penalty", "snl", "snip", "taylor", "senet", "bcd", "random", "uniform")  # of single ReLUs
BARS = {"replacement_over_distillation": 1.35, "default_over_faithful": 1.2}


@dataclass(frozen=True)
class Effort:
    """How training steps are measured; threads: torch's own choice if none is given."""

    steps: int = 12
    batch_size: int = 128
    threads: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"

    def times(self, network: str, kinds: Sequence[str]) -> dict[str, list[float]]:
        """Seconds of a step of each kind on random images, round by round; kinds take turns: noise hits all alike."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        _native.keep_freed_memory()  # as training does
        torch.manual_seed(0)
        entry = models.spec(network)
        x = torch.randn(self.batch_size, entry.channels, entry.image_size, entry.image_size)
        x, y = x.contiguous(memory_format=torch.channels_last), torch.randint(10, (self.batch_size,))
        takes = {kind: _step(kind, network, x, y, self.precision == "bfloat16") for kind in kinds}
        times: dict[str, list[float]] = {kind: [] for kind in takes}
        for number in range(-(-self.steps // 2) + 2):  # the first two rounds warm up
            for kind, take in takes.items():
                started = time.perf_counter()
                take()
                take()
                if number >= 2:
                    times[kind].append((time.perf_counter() - started) / 2)
        return times

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "threads": torch.get_num_threads()}


USUAL = Effort()


def measure(networks: Sequence[str] = ("resnet20", "resnet18"), effort: Effort = USUAL) -> dict[str, Any]:
    """Median step time of each kind for each network."""
    rows = []
    for network in networks:
        times = effort.times(network, STEPS)
        for recipe, (first, second) in PHASES.items():
            share = _first_phase(recipe)
            times[recipe] = [share * a + (1 - share) * b for a, b in zip(times[first], times[second])]
        medians = {kind: statistics.median(values) for kind, values in times.items()}
        rows.append(
            {
                "network": network,
                "images_per_second": {kind: round(effort.batch_size / value, 1) for kind, value in medians.items()},
                "seconds_per_step": {kind: round(value, 4) for kind, value in medians.items()},
                **{name: round(_ratio(times, *name.split("_over_")), 3) for name in BARS},
            }
        )
    return {**effort.to_json(), "bars": BARS, "networks": rows}


def measure_methods(network: str = "resnet20", effort: Effort = USUAL) -> dict[str, Any]:
    """How many times as long as a distillation step a step of each method takes, by the median of rounds."""
    times = effort.times(network, ("distillation", *METHODS))
    ratios = {method: round(_ratio(times, method, "distillation"), 3) for method in METHODS}
    bar = BARS["replacement_over_distillation"]
    return {**effort.to_json(), "network": network, "bar": bar, "over_distillation": ratios}


def _first_phase(recipe: str) -> float:
    """Share of a recipe's steps that belong to its first phase."""
    settings = _settings(recipe)
    return settings.freeze_at if recipe == "default" else settings.penalty.refresh_epochs / settings.epochs


def _settings(kind: str) -> ReplaceSettings:
    """Of a recipe, or of a method with all else as by default."""
    if kind in ("faithful", "snl"):
        return ReplaceSettings.of(kind)
    return ReplaceSettings(method=kind) if kind in METHODS else ReplaceSettings()


def _ratio(times: dict[str, list[float]], kind: str, other: str) -> float:
    """Median over rounds of how many times as long a step of `kind` took; both of a round see the same machine."""
    return statistics.median(one / two for one, two in zip(times[kind], times[other]))


def _step(kind: str, network: str, x: Tensor, y: Tensor, half: bool) -> Callable[[], None]:
    """A function that takes one optimiser step of this kind."""
    model = models.create(network, 10)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this form
    stages = models.spec(network).stages
    teacher = Teacher(model, stages) if kind != "baseline" else None
    recipe = next((name for name, phases in PHASES.items() if kind in phases), None)
    settings = _settings(recipe or kind)
    course = None
    if recipe is not None or kind in METHODS:
        assert teacher is not None
        course = _course(model, x, settings, teacher, recipe is None or kind == PHASES[recipe][0])
    weights = course.handle.weights() if course is not None else list(model.parameters())
    optimizer = weights_optimizer(weights, settings.learning_rate, settings.weight_decay, kind=settings.optimizer)
    tap = FeatureTap(model, stages)
    model.train()

    def take() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(x).float()
            answers = teacher(x) if teacher is not None else None
        features = tap.take()
        loss = F.cross_entropy(logits, y)
        if answers is not None:
            loss = loss + distillation(logits, answers[0].float(), 4.0)
        if course is not None:
            if answers is not None and settings.features and not course.handle.frozen:
                loss = loss + feature_distance(features, answers[1])
            loss = loss + course.loss()
        loss.backward()
        if course is not None and settings.clip:
            nn.utils.clip_grad_norm_(weights, settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if course is not None:
            course.step()

    return take


def _course(model: nn.Module, x: Tensor, settings: ReplaceSettings, teacher: Teacher, first: bool) -> Course:
    """A replacement in the first or the second phase of its recipe, at a tenth of the ReLUs."""
    chosen = function(settings.function)
    handle = replace_activations_(model, x[:1], degree=chosen.degree, polynomial=chosen.polynomial)
    handle.budget = handle.total // 10
    steps = 400_000
    course = handle.course = Course(
        model, handle, lambda: [x], steps, settings, epoch_steps=steps // settings.epochs, teacher=teacher.answers
    )
    course.begin_()
    handle.step_exact_(handle.require_budget())
    if settings.method == "ramp" and not first:
        handle.settle_(handle.require_budget())
    at = round((0.9 if first else 1.1) * _first_phase("default" if settings.method == "ramp" else "faithful") * steps)
    course.resume_(at, course.selection.state, course.average)
    return course
