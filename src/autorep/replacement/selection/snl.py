"""snl: selective network linearisation (Cho et al., 2022). A gate in [0, 1] on every element, trained under an L1 norm.

y = a·relu(x) + (1 − a)·poly(x), poly the identity in the original (function = "identity", coefficient_rate = 0). All
gates start at 1; the loss has weight·Σ|a| added. From time to time the gates above 0.01 are counted, and where this is
no new low the weight grows by a tenth. Once no more than N are above, the weight is 0, and at the end of that epoch the
N highest become ReLUs for good, the others are replaced.

Adam moves a gate by at most its rate a step, so from 1 to 0 it takes 1/aux_rate steps and more: the original has 1e-3
and hundreds of epochs, a selection of three CIFAR epochs needs aux_rate = 5e-3.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from autorep.replacement.selection.base import Context, Selection
from autorep.replacement.settings import SnlSettings

OPEN = 0.01  # a gate above this still needs its ReLU
GROWTH = 1.1
ADJUSTMENTS = 500  # of the weight, over the whole selection


class Snl(Selection[SnlSettings]):
    """The state is the weight and the lowest count so far."""

    Settings: ClassVar[type] = SnlSettings

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
        flips = ctx.handle.set_masks_({name: site.aux > OPEN for name, site in ctx.handle.sites.items()})
        settling = step < self.settings.settle * ctx.steps
        if (step + 1) % max(ctx.steps // ADJUSTMENTS, 1) == 0 and self.state["weight"]:
            self.adjust_(ctx.handle.count(), ctx.budget, settling)
        return flips

    def adjust_(self, count: int, budget: int, settling: bool) -> None:
        """The weight after this many gates were found open: 0 at the budget, a tenth more where it is no new low."""
        if count <= budget:
            self.state["weight"] = 0.0
        elif not settling and count >= self.state["lowest"]:
            self.state["weight"] *= GROWTH
        self.state["lowest"] = min(self.state["lowest"], float(count))

    def epoch_(self, ctx: Context) -> bool:
        return not self.state["weight"]
