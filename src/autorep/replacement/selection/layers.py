"""What methods over whole layers share: masks by layer, and a count that may end below the budget."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch

from autorep.replacement.selection.base import Context, NoSettings, Selection


class Layers(Selection[NoSettings]):
    """A layer keeps all its ReLUs or none."""

    divides: ClassVar[bool] = False

    def final_count(self, ctx: Context) -> int:
        return ctx.handle.count()


def keep_layers_(ctx: Context, names: Collection[str]) -> int:
    """Masks of these sites all 1, of the others all 0; returns how many flipped."""
    return ctx.handle.set_masks_(
        {name: torch.full_like(site.mask, 1 if name in names else 0) for name, site in ctx.handle.sites.items()}
    )


def sizes(ctx: Context) -> dict[str, int]:
    """ReLUs of every site."""
    return {name: site.mask.numel() for name, site in ctx.handle.sites.items()}
