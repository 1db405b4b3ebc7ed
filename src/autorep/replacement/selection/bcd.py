"""bcd: block coordinate descent (2025). From twice the budget down, a block of ReLUs at a time.

A block is drawn at random from the ReLUs still kept. The first of so many draws that costs less than 0.3 points of
accuracy on the calibration images is taken, else the one that costs least; then the network is trained until the next
block is due. The original starts from SNL's result; here the start is by `ramp`'s scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from autorep.replacement.selection.base import Context, Selection
from autorep.replacement.selection.ramp import ramp_scores
from autorep.replacement.selection.scores import accuracy
from autorep.replacement.settings import BcdSettings

Block = TypeVar("Block")


def first_harmless(blocks: Iterable[Block], damage: Callable[[Block], float], tolerance: float) -> Block:
    """The first block whose damage is below the tolerance, else the one of least damage (the earlier of equals)."""
    best: tuple[float, Block] | None = None
    for block in blocks:
        cost = damage(block)
        if best is None or cost < best[0]:
            best = (cost, block)
        if cost < tolerance:
            return block
    if best is None:
        raise ValueError("there is no block to choose from")
    return best[1]


class Bcd(Selection[BcdSettings]):
    """Block number b falls due after b + 1 of blocks + 1 equal parts of the selection; the masks carry the state."""

    Settings: ClassVar[type] = BcdSettings

    def begin_(self, ctx: Context) -> None:
        ctx.handle.start_from_(ramp_scores(ctx))
        ctx.handle.step_exact_(min(2 * ctx.budget, ctx.handle.total))

    def choose_(self, ctx: Context, step: int) -> int:
        start = min(2 * ctx.budget, ctx.handle.total)
        due = min(step * (self.settings.blocks + 1) // max(ctx.steps, 1), self.settings.blocks)
        target = start - (start - ctx.budget) * due // self.settings.blocks
        excess = ctx.handle.count() - target
        return self._drop_(ctx, excess, step) if excess > 0 else 0

    def _drop_(self, ctx: Context, size: int, step: int) -> int:
        before = accuracy(ctx)
        masks = {name: site.mask.clone() for name, site in ctx.handle.sites.items()}

        def damage(block: dict[str, Tensor]) -> float:
            ctx.handle.set_masks_(block)
            return 100 * (before - accuracy(ctx))

        held = self._held(ctx)
        draws = (_without(masks, held, size, ctx.generator("block", step, t)) for t in range(self.settings.tries))
        chosen = first_harmless(draws, damage, self.settings.tolerance)
        ctx.handle.set_masks_(chosen)
        return size

    @staticmethod
    def _held(ctx: Context) -> Tensor:
        """Elements that a floor keeps, of each layer those of highest aux; flat over all sites."""
        parts = []
        for site in ctx.handle.sites.values():
            aux = site.aux.detach().masked_fill(~site.mask.bool(), -torch.inf).reshape(-1)
            held = torch.zeros_like(aux, dtype=torch.bool)
            held[aux.topk(min(ctx.handle.settings.floor, aux.numel())).indices] = True
            parts.append(held)
        return torch.cat(parts)


def _without(masks: dict[str, Tensor], held: Tensor, size: int, draw: torch.Generator) -> dict[str, Tensor]:
    """The masks less `size` of their ones, drawn at random among those that are not held."""
    flat = torch.cat([mask.reshape(-1) for mask in masks.values()]).clone()
    kept = (flat.bool() & ~held).nonzero().reshape(-1)
    flat[kept[torch.randperm(len(kept), generator=draw)[:size].to(kept.device)]] = 0
    parts = flat.split([mask.numel() for mask in masks.values()])
    return {name: part.reshape(mask.shape) for (name, mask), part in zip(masks.items(), parts)}
