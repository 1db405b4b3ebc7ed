"""random: a control. Any ReLUs, drawn once; what a method adds over this is what its choice is worth."""

from __future__ import annotations

import torch
from torch import Tensor

from autorep.replacement.selection.base import Context
from autorep.replacement.selection.scores import AtOnce


class Random(AtOnce):
    """Every set of N elements is as likely as any other."""

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        return random_scores(ctx)


def random_scores(ctx: Context) -> dict[str, Tensor]:
    """Independent numbers, uniform in (0, 1), the same in every process and at every call."""
    draw = ctx.generator("random selection")
    return {
        name: torch.rand(site.mask.shape, generator=draw, dtype=torch.float64).to(site.mask.device)
        for name, site in ctx.handle.sites.items()
    }
