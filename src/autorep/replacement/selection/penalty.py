"""penalty: the paper's rule. All masks start at 1, a penalty on the count pulls aux down, hysteresis flips masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from autorep.replacement.selection.base import Context, Selection

REFRESH_STEPS = 20  # between two refreshes of the coefficients from running moments


@dataclass(frozen=True)
class PenaltySettings:
    """Of the paper's rule."""

    weight: float = 80.0
    """Per share of all ReLUs above the budget: the paper's mu times all ReLUs, the lambda of the authors' program (6K:
    200, 9K: 140, 12.9K: 80, 15K: 60, 25K and more: 40 for a ResNet-18 on CIFAR-100)."""
    refresh_epochs: float = 1.0
    """Epochs in which coefficients follow the running moments before they are trained."""


class Penalty(Selection[PenaltySettings]):
    """As in the authors' program: aux starts uniform in (0, 1), coefficients follow running moments at first."""

    Settings: ClassVar[type] = PenaltySettings

    def begin_(self, ctx: Context) -> None:
        ctx.handle.start_uniform_(ctx.generator("aux"))

    def choose_(self, ctx: Context, step: int) -> int:
        ctx.handle.tracking = step < self.settings.refresh_epochs * ctx.epoch_steps
        return 0

    def penalty(self, ctx: Context) -> Tensor:
        return ctx.handle.penalty(self.settings.weight)

    def follow_(self, ctx: Context, step: int) -> int:
        flips = ctx.handle.step_hysteresis_()
        if ctx.handle.tracking and (step + 1) % REFRESH_STEPS == 0:
            ctx.handle.refresh_coefficients_(ctx.curve)
        return flips
