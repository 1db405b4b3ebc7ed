"""The Replacement handle: a model's replaced activations, and the course that brings them down to the budget.

`begin`, `loss` and `step` carry the whole method through anyone's training loop (see `course`); what it has from
`replaced` are the method's parts, for methods and loops that go their own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autorep import notebook
from autorep.errors import CheckpointError, ConfigError
from autorep.replacement import moments
from autorep.replacement.course import Course
from autorep.replacement.prices import Prices
from autorep.replacement.replaced import SETTINGS_ATTRIBUTE, SUDDEN, ReplacedActivations, ReplacementSettings
from autorep.replacement.settings import CourseSettings
from autorep.settings import warn


def attach(model: nn.Module) -> Replacement:
    """The handle of an already replaced model, also of a copy, or of one wrapped for data-parallel or compiled runs."""
    for module in model.modules():
        if isinstance(getattr(module, SETTINGS_ATTRIBUTE, None), ReplacementSettings):
            return Replacement(module)
    raise CheckpointError("this model's activations were not replaced; call replace_activations_ first")


class Replacement(ReplacedActivations):
    """Handle on the replaced activations of one model, through its training and to the end of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._course: Course | None = None

    def __repr__(self) -> str:
        return f"<Replacement: {self._state()}>"

    def _repr_html_(self) -> str:
        """For notebooks: every layer with the share it keeps, and where in the picture its kept ReLUs are."""
        maps = [notebook.map_picture(site.mask.float().mean(0).cpu().numpy()) for site in self.sites.values()]
        rows = [
            (row["name"], "×".join(map(str, row["shape"])), f"{row['relus']:,}", f"{row['kept']:,}", share, picture)
            for row, picture in zip(self.table(), maps)
            for share in [notebook.bar(row["kept"] / row["relus"])]
        ]
        head = ("layer", "shape", "ReLUs", "kept", "share", "where")
        return notebook.panel("Replacement", self._state(), notebook.table(head, rows, "llrrll"))

    def _state(self) -> str:
        budget = "" if self.budget is None or self.frozen else f", budget {self.budget:,}"
        pooling = f"; max pooling makes {self.settings.max_pool:,} comparisons more" * bool(self.settings.max_pool)
        final = ", final" * self.frozen
        return f"{self.count():,} of {self.total:,} ReLUs kept in {len(self.sites)} layers{budget}{final}{pooling}"

    @property
    def course(self) -> Course:
        """The replacement on its way; there is one after `begin`."""
        if self._course is None:
            raise ConfigError(
                "the replacement has not begun: call replacement.begin(model, batches, total_steps) first"
            )
        return self._course

    @course.setter
    def course(self, course: Course) -> None:
        self._course = course

    def begin(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        total_steps: int,
        *,
        teacher: Callable[[Tensor], Tensor] | None = None,
        settings: CourseSettings | None = None,
        epoch_steps: int | None = None,
        prices: Callable[[], Prices] | None = None,
    ) -> None:
        """Start the replacement: polynomials and masks from some batches, then `total_steps` steps of your loop.

        Args:
            model: the network, or its data-parallel wrapper (one wrapper will do until the end).
            batches: images, or tuples that start with them, normalised as in training, as a loader gives them; some two
                thousand are enough.
            total_steps: optimiser steps that the loop will take; masks are final after the first quarter.
            teacher: the all-ReLU network, frozen; where given, distorted images are answered as it answers them.
            settings: everything else; the defaults are the recipe of `autorep replace`.
            epoch_steps: steps in an epoch, for methods that count in epochs; by default a twelfth of all.
            prices: of the method `latency`: gives what activations cost (see `prices`).
        """
        if isinstance(model, DistributedDataParallel | nn.DataParallel):
            model = model.module
        kept = list(moments.prepared(batches, model))
        steps = epoch_steps or max(total_steps // 12, 1)
        self.course = Course(
            model,
            self,
            lambda: kept,
            total_steps,
            settings or CourseSettings(),
            epoch_steps=steps,
            teacher=teacher,
            prices=prices,
        )
        self.course.begin_()

    def loss(self) -> Tensor:
        """What the replacement adds to the loss of the training forward that has just been run."""
        return self.course.loss()

    def step(self) -> int:
        """The replacement's own step, after your optimiser's; returns how many masks flipped."""
        return self.course.step()

    def finalize_(self, budget: int | None = None) -> int:
        """Exactly `budget` ReLUs with as few flips as possible, then freeze; returns how many masks flipped.

        It ends the course: averaged weights become the model's own. A course that was to come down to the budget by
        itself and is far from it yet is not cut short: that is a BudgetError with the numbers. Without a course, a
        sudden cut only warns. Polynomials that were never fitted to the network's inputs are refused.
        """
        budget = self.require_budget() if budget is None else budget
        self._require_calibration(budget)
        if self._course is not None:
            self.refuse_sudden_cut(f"after {self._course.taken} of {self._course.total_steps} steps", budget)
            self._course.end_()
        elif self.count() - budget > SUDDEN * self.total:
            warn(
                f"finalize_ replaces {self.count() - budget:,} of {self.count():,} ReLUs at once to keep {budget:,};"
                " the network has not been trained for that, so measure it before you use it (replacement.begin comes"
                " down step by step)"
            )
        return self.settle_(budget)

    def _require_calibration(self, budget: int) -> None:
        """A ConfigError where elements would go through polynomials that nothing was ever fitted to."""
        wrong = [name for name, site in self.sites.items() if not site.calibrated]
        if wrong and budget < self.total:
            raise ConfigError(
                f"finalize_ before calibration: the polynomials of {', '.join(wrong[:3])}{'…' * (len(wrong) > 3)} were "
                "never fitted to what these layers see. Call replacement.begin(model, batches, total_steps) and train, "
                "or replacement.calibrate_(model, batches)"
            )
