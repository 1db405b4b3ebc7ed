"""The interface of a selection method: what it is given, and the calls it may answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from autorep.replacement.prices import Prices
from autorep.replacement.replaced import ReplacedActivations


@dataclass(eq=False)
class Context:
    """What a method works with; filled by `Course`, and by training where it knows more.

    Attributes:
        model: the network, its activations replaced, all masks 1 at the start.
        handle: the masks, auxiliary parameters and polynomials.
        budget: ReLUs to keep in the end.
        steps: optimiser steps until the masks must be final.
        epoch_steps: optimiser steps in an epoch.
        curve: share of the fitted curvature that polynomials start with.
        batches: gives calibration batches, (images, labels) or images alone, anew at every call.
        measure: gives the held-out accuracy in percent as the network is now; -1 where there are no such images.
        teacher: the all-ReLU network, frozen, or None.
        prices: gives what activations cost on the link that the network is for, where that is asked.
        generator: a random generator for a label (and more of a key), the same at every call.
    """

    model: nn.Module
    handle: ReplacedActivations
    budget: int
    steps: int
    epoch_steps: int
    curve: float
    batches: Callable[[], Iterable[Any]]
    measure: Callable[[], float]
    teacher: Callable[[Tensor], Any] | None
    generator: Callable[..., torch.Generator]
    prices: Callable[[], Prices] | None = None


@dataclass(frozen=True)
class NoSettings:
    """Of a method that has none."""


S = TypeVar("S")


class Selection(Generic[S]):
    """Which ReLUs stay. A method answers the calls it needs; the others do nothing.

    Attributes:
        Settings: frozen dataclass of the method's own settings.
        settings: those of this run.
        divides: whether a layer may keep some of its ReLUs, so that a floor of so many makes sense.
        state: numbers that a checkpoint keeps; all else must follow from the model and the step.
    """

    Settings: ClassVar[type] = NoSettings
    divides: ClassVar[bool] = True

    def __init__(self, settings: S) -> None:
        self.settings = settings
        self.state: dict[str, float] = {}

    def begin_(self, ctx: Context) -> None:
        """First masks, gates or scores, once the polynomials are fitted."""

    def choose_(self, ctx: Context, step: int) -> int:
        """Masks of this step, before it is taken (again, when a run is resumed there); returns how many flipped."""
        return 0

    def penalty(self, ctx: Context) -> Tensor | None:
        """What joins the loss of this step."""
        return None

    def follow_(self, ctx: Context, step: int) -> int:
        """After the optimisers have stepped; returns how many masks flipped."""
        return 0

    def epoch_(self, ctx: Context) -> bool:
        """After every epoch: True when the masks shall be final now, before `ctx.steps`."""
        return False

    def aux_rate(self, rate: float, steps: int) -> float:
        """Learning rate of the auxiliary parameters, where a selection of so many steps needs another than is set."""
        return rate

    def final_count(self, ctx: Context) -> int:
        """ReLUs when the masks become final: the budget; fewer of a method that keeps whole channels or layers."""
        return ctx.budget
