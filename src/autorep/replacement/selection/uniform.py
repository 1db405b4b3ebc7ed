"""uniform: a control. Every layer keeps the same share of its ReLUs, drawn once within it."""

from __future__ import annotations

from autorep.replacement.selection.base import Context, NoSettings, Selection
from autorep.replacement.selection.random import random_scores
from autorep.replacement.selection.scores import quotas


class Uniform(Selection[NoSettings]):
    """Layers by largest remainder, so that their counts add up to the budget; elements at random."""

    def begin_(self, ctx: Context) -> None:
        ctx.handle.start_from_(random_scores(ctx))
        ctx.handle.step_quotas_(quotas(ctx, [site.mask.numel() for site in ctx.handle.sites.values()]))
