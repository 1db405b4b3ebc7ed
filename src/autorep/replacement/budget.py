"""The ReLU budget: what is feasible, and which elements an exact budget keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from autorep.errors import BudgetError


def check_budget(budget: int, sizes: Sequence[int], floor: int) -> int:
    """The budget itself when it can be met, else a BudgetError that names the valid range."""
    lowest = sum(min(floor, size) for size in sizes)
    total = sum(sizes)
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise BudgetError(
            f"budget {budget!r} is not a whole number of ReLUs; valid: {lowest} to {total}"
            " (for a share of the network multiply it by `replacement.total`)"
        )
    if not lowest <= budget <= total:
        because = (
            f", because every one of {len(sizes)} layers keeps at least {floor}" if floor and budget < lowest else ""
        )
        raise BudgetError(f"budget {budget} cannot be met by this network; valid: {lowest} to {total}{because}")
    return budget


def keep_best(
    scores: Sequence[Tensor], masks: Sequence[Tensor], budget: int, margin: float, floor: int = 0
) -> list[Tensor]:
    """Masks with exactly `budget` ones: the highest scores over all layers, incumbents ahead by `margin`.

    An element outside enters only by beating one inside by more than `margin`; ties go to incumbents, then to the
    earlier element, so that every process of a parallel run decides alike. Each layer keeps at least
    min(floor, its size) elements.
    """
    check_budget(budget, [mask.numel() for mask in masks], floor)
    inside = torch.cat([mask.reshape(-1) for mask in masks]).bool()
    flat = torch.cat([score.detach().reshape(-1) for score in scores]).double()
    flat = torch.where(inside, flat + margin, flat)
    if floor:
        start = 0
        for mask in masks:
            layer = flat[start : start + mask.numel()]
            layer[layer.topk(min(floor, layer.numel())).indices] = torch.inf
            start += mask.numel()
    kept = _top(flat, inside, budget)
    parts = kept.to(masks[0].dtype).split([mask.numel() for mask in masks])
    return [part.reshape(mask.shape) for part, mask in zip(parts, masks)]


def keep_at_least(mask: Tensor, aux: Tensor, floor: int) -> Tensor:
    """The mask, refilled with the highest aux when fewer than min(floor, size) elements are left."""
    short = min(floor, mask.numel()) - int(mask.sum())
    if short <= 0:
        return mask
    outside = aux.detach().masked_fill(mask.bool(), -torch.inf).reshape(-1)
    filled = mask.clone().reshape(-1)
    filled[outside.topk(short).indices] = 1
    return filled.reshape(mask.shape)


def _top(flat: Tensor, preferred: Tensor, count: int) -> Tensor:
    """Boolean tensor with exactly `count` true at the largest values; ties by `preferred`, then by position."""
    if count == 0:
        return torch.zeros_like(flat, dtype=torch.bool)
    place = flat.numel() - count
    threshold = float(np.partition(flat.cpu().numpy(), place)[place])  # several times as fast as torch's kthvalue
    kept = flat > threshold
    missing = count - int(kept.sum())
    tied = flat == threshold
    candidates = torch.cat([(tied & preferred).nonzero(), (tied & ~preferred).nonzero()]).reshape(-1)
    kept[candidates[:missing]] = True
    return kept
