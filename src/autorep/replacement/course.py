"""The course of a replacement: everything that happens beside the task's own loss, step by step, in one object.

begin_   polynomials fitted to what each channel sees; the method's first masks
loss     range penalty of the step's forward, the method's penalty; when the network settles, the stress (`stress`)
step     the own optimisers (auxiliary parameters, coefficients), then the method: masks of the next step, or the
         freeze; the running average of the weights

In training forwards, inputs of replaced activations are cut off at `input_limit` deviations, and no gradient passes a
polynomial there, so that one image's outlier cannot blow up a step. At inference nothing is cut off: the range penalty
and the stress see to it that hardly anything needs to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autorep.errors import ConfigError
from autorep.replacement.averaging import WeightAverage
from autorep.replacement.fitting import fit_polynomials_, steady_
from autorep.replacement.functions import function
from autorep.replacement.prices import Prices
from autorep.replacement.replaced import ReplacedActivations
from autorep.replacement.schedule import cosine
from autorep.replacement.selection import Context, selection
from autorep.replacement.settings import CourseSettings
from autorep.replacement.softened import distillation
from autorep.replacement.stress import Stress

STRESS_EVERY = 2  # steps
STRESS_ANSWERS = 0.25  # weight of the teacher's answers to distorted images


class Course:
    """One replacement on its way from all ReLUs to the budget and through fine-tuning."""

    def __init__(
        self,
        model: nn.Module,
        handle: ReplacedActivations,
        batches: Callable[[], Iterable[Any]],
        total_steps: int,
        settings: CourseSettings,
        *,
        epoch_steps: int,
        teacher: Callable[[Tensor], Any] | None = None,
        measure: Callable[[], float] = lambda: -1.0,
        generator: Callable[..., torch.Generator] | None = None,
        prices: Callable[[], Prices] | None = None,
    ) -> None:
        wanted = function(settings.function)
        if (handle.settings.degree, handle.settings.polynomial) != (wanted.degree, wanted.polynomial):
            raise ConfigError(
                f"function = {settings.function} has degree {wanted.degree} and the sites have"
                f" {handle.settings.degree}, polynomial {handle.settings.polynomial!r}; use replace_activations_(…,"
                f" degree={wanted.degree}, polynomial={wanted.polynomial!r})"
            )
        self.settings, self.handle, self.model = settings, handle, model
        self.total_steps, self.taken, self.flips = total_steps, 0, 0
        self.freeze_step = 0 if handle.frozen else round(settings.freeze_at * total_steps)
        self.stress_step = 0 if handle.frozen else round(settings.stress_from * total_steps)
        self.generator = generator or _generator
        self.ctx = Context(
            model=model,
            handle=handle,
            budget=handle.require_budget(),
            steps=self.freeze_step,
            epoch_steps=epoch_steps,
            curve=settings.curve,
            batches=batches,
            measure=measure,
            teacher=teacher,
            generator=self.generator,
            prices=prices,
        )
        self.selection = selection(settings)
        self.optimizers = {
            "coefficients": _adam(handle.coefficient_parameters(), settings.coefficient_rate),
            "aux": _adam(handle.aux_parameters(), self.selection.aux_rate(settings.aux_rate, self.freeze_step)),
        }
        self.average: WeightAverage | None = None
        self._stress = Stress(model, handle, batches(), settings.stress_limit) if settings.stress_weight else None
        self._images: Tensor | None = None
        self._precision = torch.float32
        self._versions: list[int] = []
        self._foreign_moves = 0
        self._hook = model.register_forward_pre_hook(_Listener(self))
        handle.track_range(settings.range_limit if settings.range_weight else None)

    def begin_(self) -> None:
        """Fit the polynomials, let the method give its first masks, and set up the first step.

        A network whose masks are final already goes on from where it is: all steps are fine-tuning.
        """
        handle = self.handle
        if self.settings.average:
            self.average = WeightAverage(self.model, self.settings.average)
        if handle.frozen:
            self._start_fine_tuning_()
            self._set_up_step_()
            return
        handle.calibrate_(self.model, self.ctx.batches())
        chosen = function(self.settings.function)
        steady_(handle.sites.values())
        for site in handle.sites.values():
            chosen.apply_(site, self.settings.curve)
        if chosen.sampled:
            fit_polynomials_(self.model, handle.sites, self.ctx.batches(), self.settings.curve)
        if handle.settings.floor and not self.selection.divides:
            raise ConfigError(
                f"floor = {handle.settings.floor}: the method {self.settings.method} keeps whole channels or layers, or"
                " none, and cannot keep some ReLUs of each; leave floor at 0 or take another method"
            )
        self.selection.begin_(self.ctx)
        self._set_up_step_()

    def resume_(self, taken: int, selection: dict[str, float], average: WeightAverage | None) -> None:
        """Go on after so many steps, with the model and the optimisers as they were then."""
        self.taken, self.selection.state, self.average = taken, dict(selection), average
        if self.handle.frozen:
            self.optimizers.pop("aux")
        self._set_up_step_()
        self.flips = 0

    def loss(self) -> Tensor:
        """What the replacement adds to the task's loss of the forward that has just been run."""
        settings = self.settings
        parts: list[Tensor] = []
        sums = self.handle.take_range_sums() if settings.range_weight else None
        if sums is not None:
            parts.append(settings.range_weight * self.handle.mean_excess(sums))
        if self._stress is not None and self._stressful():
            parts.append(self._stress_loss(self._stress, sums))
        if not self.handle.frozen and (penalty := self.selection.penalty(self.ctx)) is not None:
            parts.append(penalty)
        self._images = None
        return torch.stack(parts).sum() if parts else self.handle.coefficient_parameters()[0].new_zeros(())

    def step(self) -> int:
        """After the task's optimiser has stepped: the replacement's own step. Returns how many masks flipped."""
        self._refuse_foreign_moves()
        if self.handle.frozen:
            for aux in self.handle.aux_parameters():
                aux.grad = None  # of data-parallel training, see ReplacedActivations.freeze_
        factor = cosine(self.taken, self.total_steps, self.settings.warmup)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.flips = 0
        final = self.handle.frozen
        if not final:
            self.flips += self.selection.follow_(self.ctx, self.taken)
        if self.average is not None:
            self.average.update_()
        self.taken += 1
        if not final and self.taken % self.ctx.epoch_steps == 0 and self.selection.epoch_(self.ctx):
            self.freeze_step = self.taken
        self._set_up_step_()
        return self.flips

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights inside, where there are any; the model's own again afterwards."""
        with self.average.applied() if self.average is not None else nullcontext():
            yield
        self._versions = self._current_versions()

    def end_(self) -> None:
        """Take the averaged weights for good; training forwards are no longer limited or measured."""
        if self.average is not None:
            self.average.assign_()
            self.average = None
        self._hook.remove()
        self.handle.limit_inputs(float("inf"))
        self.handle.track_range(None)

    def _set_up_step_(self) -> None:
        """Limits and masks of the next step; the freeze, when it is due."""
        settings, handle = self.settings, self.handle
        if settings.input_limit:
            planned = self.ctx.steps  # also of a method that froze earlier: a resumed course knows no other
            since = max(self.taken - planned, 0) / max(self.total_steps - planned, 1)
            handle.limit_inputs(settings.input_limit * (1 + (settings.input_opening - 1) * since))
        if not handle.frozen and self.taken < self.total_steps:
            if self.taken >= self.freeze_step:
                self._freeze_()
            else:
                self.flips += self.selection.choose_(self.ctx, self.taken)
        self._versions = self._current_versions()

    def _freeze_(self) -> None:
        self.handle.refuse_sudden_cut(f"after {self.taken} of {self.total_steps} steps")
        self.flips += self.handle.settle_(self.selection.final_count(self.ctx))
        self._start_fine_tuning_()

    def _start_fine_tuning_(self) -> None:
        self.handle.tracking = False
        del self.optimizers["aux"]

    def notice(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Keep the images of a training forward, and its precision, for the stress."""
        if module.training and self._stress is not None and self._stressful():
            self._images = args[0].detach()
            kind = args[0].device.type
            half = torch.is_autocast_enabled(kind)
            self._precision = torch.get_autocast_dtype(kind) if half else torch.float32

    @property
    def settled(self) -> bool:
        """Whether the network as it is now may be a result: its masks are final, and half of the stress is behind it.

        With less of it a network is often more accurate, and runs away more often: chosen for its accuracy, it would
        be the one that the stress has not reached.
        """
        due = 0.0 if self._stress is None else (self.stress_step + self.total_steps) / 2
        return self.handle.frozen and self.taken >= due

    def _stressful(self) -> bool:
        """Whether this step has stress: every other one from `stress_from` on, once the masks are final."""
        return self.handle.frozen and self.taken >= self.stress_step and self.taken % STRESS_EVERY == 0

    def _stress_loss(self, stress: Stress, sums: Tensor | None) -> Tensor:
        """The stress as a term of the loss whose gradient has at most the norm `stress_clip`.

        One escaping image has a gradient many times as large as the task's; unlimited, it alone would decide the step.
        So the gradient g is taken here, and passed on as that of Σ g·p over the parameters p.
        """
        if self._images is None:
            raise ConfigError("loss() belongs after a training forward of the model; there was none since the last")
        draw = self.generator("stress", self.taken)
        images = stress.images(self._images, sums, self.settings.stress_images, draw)
        with torch.autocast(images.device.type, self._precision, enabled=self._precision != torch.float32):
            excess, logits = stress.loss(images)
            loss = self.settings.stress_weight * excess
            if self.ctx.teacher is not None:
                with torch.no_grad():
                    answers = self.ctx.teacher(images).float()
                loss = loss + STRESS_ANSWERS * distillation(logits, answers)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = [(p, g) for p, g in zip(parameters, gradients) if g is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for _, g in pairs]))
        factor = (self.settings.stress_clip / norm.clamp_min(1e-12)).clamp_max(1.0)
        return torch.stack([((p - p.detach()) * (factor * g)).sum() for p, g in pairs]).sum() + loss.detach()

    def _refuse_foreign_moves(self) -> None:
        """Another optimiser that also moves coefficients and auxiliary parameters would undo what the course does."""
        self._foreign_moves = self._foreign_moves + 1 if self._current_versions() != self._versions else 0
        if self._foreign_moves > 1:
            raise ConfigError(
                "something else moves the replacement's own parameters between its steps: give your optimiser"
                " replacement.weights() instead of model.parameters()"
            )

    def _current_versions(self) -> list[int]:
        own = [*self.handle.coefficient_parameters(), *self.handle.aux_parameters()]
        return [parameter._version for parameter in own]


class _Listener:
    """Tells a course of its model's forwards. A copy of the model, or its pickle, has a listener of nobody."""

    def __init__(self, course: Course | None = None) -> None:
        self._course = course

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._course is not None:
            self._course.notice(module, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Listener, ()


def _adam(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": parameters, "peak": rate}], fused=True)


def _generator(*key: int | str) -> torch.Generator:
    """A generator that depends on the key alone."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
