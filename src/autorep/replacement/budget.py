"""The ReLU budget: what is feasible, and which elements an exact budget keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from autorep.errors import BudgetError


def check_budget(budget: float, sizes: Sequence[int], floor: int) -> int:
    """The number of ReLUs a budget means, a share below 1 or a count; a BudgetError names the valid range."""
    lowest = sum(min(floor, size) for size in sizes)
    total = sum(sizes)
    if isinstance(budget, float) and 0 < budget < 1:
        budget = round(budget * total)
    if isinstance(budget, bool) or budget != int(budget):
        raise BudgetError(
            f"budget {budget!r} is not a whole number of ReLUs; valid: {lowest} to {total}, or a share of them below 1"
        )
    budget = int(budget)
    if not lowest <= budget <= total:
        because = (
            f", because every one of {len(sizes)} layers keeps at least {floor}" if floor and budget < lowest else ""
        )
        raise BudgetError(f"budget {budget} cannot be met by this network; valid: {lowest} to {total}{because}")
    return budget


def keep_best(
    scores: Sequence[Tensor],
    masks: Sequence[Tensor],
    budget: int,
    margin: float,
    floor: int = 0,
    quotas: Sequence[int] | None = None,
) -> list[Tensor]:
    """Masks with exactly `budget` ones: the highest scores over all layers, incumbents ahead by `margin`.

    An element outside enters only by beating one inside by more than `margin`; ties go to incumbents, then to the
    earlier element, so that every process of a parallel run decides alike. Each layer keeps at least
    min(floor, its size) elements; with `quotas` it keeps exactly that many, and they must add up to the budget.
    """
    sizes = [mask.numel() for mask in masks]
    check_budget(budget, sizes, floor)
    if quotas is not None:
        _check_quotas(quotas, sizes, budget)
        return [
            keep_best([score], [mask], quota, margin)[0]
            for score, mask, quota in zip(scores, masks, quotas, strict=True)
        ]
    inside = torch.cat([mask.reshape(-1) for mask in masks]).bool()
    flat = torch.cat([score.detach().reshape(-1) for score in scores]).double()
    flat = torch.where(inside, flat + margin, flat)
    if floor:
        start = 0
        for size in sizes:
            layer = flat[start : start + size]
            layer[layer.topk(min(floor, size)).indices] = torch.inf
            start += size
    kept = _top(flat, inside, budget)
    parts = kept.to(masks[0].dtype).split(sizes)
    return [part.reshape(mask.shape) for part, mask in zip(parts, masks)]


def keep_groups(
    scores: Sequence[Tensor], masks: Sequence[Tensor], budget: int, unit: Literal["channel", "layer"]
) -> list[Tensor]:
    """Masks of whole channels or layers: groups by their mean score, best first, each kept that still fits the budget.

    They may end below the budget, since a group is never divided.
    """
    sizes = [mask.numel() for mask in masks]
    check_budget(budget, sizes, 0)
    new = [torch.zeros_like(mask) for mask in masks]
    rows = [mask.reshape(len(mask) if unit == "channel" else 1, -1) for mask in new]
    means = [score.detach().double().reshape(row.shape).mean(1) for score, row in zip(scores, rows)]
    ranked = sorted(
        (-float(value), layer, group) for layer, mean in enumerate(means) for group, value in enumerate(mean)
    )
    for _, layer, group in ranked:
        if rows[layer].shape[1] <= budget:
            rows[layer][group] = 1
            budget -= rows[layer].shape[1]
    return new


def keep_at_least(mask: Tensor, aux: Tensor, floor: int) -> Tensor:
    """The mask, refilled with the highest aux when fewer than min(floor, size) elements are left."""
    short = min(floor, mask.numel()) - int(mask.sum())
    if short <= 0:
        return mask
    outside = aux.detach().masked_fill(mask.bool(), -torch.inf).reshape(-1)
    filled = mask.clone().reshape(-1)
    filled[outside.topk(short).indices] = 1
    return filled.reshape(mask.shape)


def _check_quotas(quotas: Sequence[int], sizes: Sequence[int], budget: int) -> None:
    if len(quotas) != len(sizes) or any(not 0 <= quota <= size for quota, size in zip(quotas, sizes)):
        raise BudgetError(
            f"quotas {list(quotas)} for layers of {list(sizes)} ReLUs; give 0 up to its size for each layer"
        )
    if sum(quotas) != budget:
        raise BudgetError(f"quotas add up to {sum(quotas)} ReLUs; the budget is {budget}")


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
