"""safenet: whole channels keep their ReLUs or lose them (SAFENet, Lou et al., 2021).

Channels are ranked over all layers by their elements' mean sensitivity, so how many each layer keeps comes out of the
ranking, where the original searches for it. A channel is never divided: the count may end below the budget.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from autorep.replacement.budget import keep_groups
from autorep.replacement.selection.base import Context
from autorep.replacement.selection.ramp import ramp_scores
from autorep.replacement.selection.scores import AtOnce


class Channels(AtOnce):
    """Whole channels by mean score, best first, as long as they fit."""

    divides: ClassVar[bool] = False

    def begin_(self, ctx: Context) -> None:
        scores = self.scores(ctx)
        ctx.handle.start_from_(scores)
        sites = ctx.handle.sites
        masks = keep_groups([scores[name] for name in sites], [s.mask for s in sites.values()], ctx.budget, "channel")
        ctx.handle.set_masks_(dict(zip(sites, masks)))

    def final_count(self, ctx: Context) -> int:
        return ctx.handle.count()


class Safenet(Channels):
    """Channels by the sensitivity of their elements."""

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        return ramp_scores(ctx)
