"""penalty: the paper's rule. All masks start at 1, a penalty on the count pulls aux down, hysteresis flips masks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from autorep.replacement.selection.base import Context, Selection
from autorep.replacement.settings import PenaltySettings

REFRESH_STEPS = 20  # between two refreshes of the coefficients from running moments


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
