"""snl: selective network linearisation (Cho et al., 2022). A gate in [0, 1] on every element, trained under an L1 norm.

y = a·relu(x) + (1 − a)·poly(x), poly the identity in the original (function = "identity", coefficient_rate = 0). All
gates start at 1; the loss has weight·Σ|a| added. From time to time the gates above 0.01 are counted, and where this is
no new low the weight grows by a tenth. Once no more than N are above, the weight is 0, closed gates stay closed, and at
the end of that epoch the N highest become ReLUs for good, the others are replaced.

The original takes hundreds of epochs, until it is there; a selection here has an end. Adam moves a gate by at most its
rate a step, so the rate is at least what brings a gate from 1 to 0 in a twentieth of the selection (of hundreds of
epochs, the original's 1e-3 is more than that). And where the count is above a straight line that reaches N at four
fifths of the selection, the weight doubles.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from autorep.replacement.selection.base import Context, Selection
from autorep.replacement.settings import SnlSettings

OPEN = 0.01  # a gate above this still needs its ReLU
GROWTH, LATE_GROWTH = 1.1, 2.0
ADJUSTMENTS = 50  # of the weight, over the whole selection
FALLS = 20  # times that a gate could come from 1 to 0 in a selection, at least
DUE = 0.8  # share of the selection by which the count shall have come down


class Snl(Selection[SnlSettings]):
    """The state is the weight and the lowest count so far."""

    Settings: ClassVar[type] = SnlSettings

    def aux_rate(self, rate: float, steps: int) -> float:
        return max(rate, FALLS / max(steps, FALLS))

    @torch.no_grad()
    def begin_(self, ctx: Context) -> None:
        for site in ctx.handle.sites.values():
            site.aux.fill_(1.0)
        self.state = {"weight": self.settings.weight, "lowest": float(ctx.handle.total)}

    def choose_(self, ctx: Context, step: int) -> int:
        for site in ctx.handle.sites.values():
            site.soft = True
        return 0

    def penalty(self, ctx: Context) -> Tensor | None:
        if not self.state["weight"]:
            return None
        return self.state["weight"] * torch.stack([aux.abs().sum() for aux in ctx.handle.aux_parameters()]).sum()

    @torch.no_grad()
    def follow_(self, ctx: Context, step: int) -> int:
        for site in ctx.handle.sites.values():
            site.aux.clamp_(0.0, 1.0)  # at the high rate of a short selection a gate would swing around 0
            if not self.state["weight"]:
                site.aux.mul_(site.mask)
        flips = ctx.handle.set_masks_({name: site.aux > OPEN for name, site in ctx.handle.sites.items()})
        settled = (step + 1) / max(ctx.steps, 1) - self.settings.settle
        if (step + 1) % max(ctx.steps // ADJUSTMENTS, 1) == 0 and self.state["weight"]:
            left = max(1 - settled / max(DUE - self.settings.settle, 1e-9), 0.0)
            due = ctx.budget + left * (ctx.handle.total - ctx.budget)
            self.adjust_(ctx.handle.count(), ctx.budget, due, settled < 0)
        return flips

    def adjust_(self, count: int, budget: int, due: float, settling: bool) -> None:
        """The weight after this many gates were found open: 0 at the budget, twice as much above what is due,
        a tenth more where it is no new low."""
        if count <= budget:
            self.state["weight"] = 0.0
        elif not settling and count > due:
            self.state["weight"] *= LATE_GROWTH
        elif not settling and count >= self.state["lowest"]:
            self.state["weight"] *= GROWTH
        self.state["lowest"] = min(self.state["lowest"], float(count))

    def epoch_(self, ctx: Context) -> bool:
        return not self.state["weight"]
