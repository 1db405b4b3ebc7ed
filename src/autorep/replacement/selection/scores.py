"""What several methods measure on the calibration batches: the task's loss, element scores, how often answers hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from autorep.errors import BudgetError
from autorep.replacement.moments import all_reduce_, evaluating, inputs_of
from autorep.replacement.selection.base import Context, Selection


class AtOnce(Selection):
    """A method that chooses its final masks before the first step; the network is then trained with them."""

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        """One score an element, by site: the highest are kept."""
        raise NotImplementedError

    def begin_(self, ctx: Context) -> None:
        ctx.handle.start_from_(self.scores(ctx))
        ctx.handle.step_exact_(ctx.budget)


def task_loss(logits: Tensor, *labels: Tensor) -> Tensor:
    """Cross-entropy with the batch's labels; with the network's own answers where a batch is images alone."""
    return F.cross_entropy(logits, labels[0] if labels else logits.detach().argmax(1))


@torch.no_grad()
def accuracy(ctx: Context) -> float:
    """Share of the calibration images that are answered rightly as the masks are now, over all processes.

    Images without labels count as right where the teacher's answer is given.
    """
    seen = torch.zeros(2, dtype=torch.float64)
    with evaluating(ctx.model):
        for batch in ctx.batches():
            x, labels = inputs_of(batch)
            if not labels and ctx.teacher is None:
                raise BudgetError(
                    "this method compares answers: give batches of (images, labels), or a teacher to begin()"
                )
            wanted = labels[0] if labels else ctx.teacher(x).argmax(1)  # type: ignore[misc]  # refused above
            seen += torch.tensor([float((ctx.model(x).argmax(1) == wanted).sum()), float(len(x))])
    right, images = all_reduce_(seen)
    return float(right / images)


def quotas(ctx: Context, weights: Sequence[float]) -> list[int]:
    """ReLUs of every layer: its floor, and of the rest of the budget a share in proportion to its weight."""
    sizes = [site.mask.numel() for site in ctx.handle.sites.values()]
    floors = [min(ctx.handle.settings.floor, size) for size in sizes]
    free = [size - floor for size, floor in zip(sizes, floors)]
    return [floor + more for floor, more in zip(floors, shares(ctx.budget - sum(floors), weights, free))]


def shares(total: int, weights: Sequence[float], limits: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to the weights, none above its limit.

    What a limit cuts off goes to the others in proportion; the last units to the largest remainders, earlier ones
    first among equals.
    """
    if not 0 <= total <= sum(limits):
        raise BudgetError(f"{total} ReLUs cannot be shared among layers of {list(limits)}")
    exact = [0.0] * len(limits)
    open_ = [i for i, (weight, limit) in enumerate(zip(weights, limits)) if weight > 0 and limit > 0]
    left = float(total)
    while open_ and left > 1e-9:
        whole = sum(weights[i] for i in open_)
        full = [i for i in open_ if exact[i] + left * weights[i] / whole >= limits[i]]
        if not full:
            exact = [value + left * weights[i] / whole if i in open_ else value for i, value in enumerate(exact)]
            left = 0.0
        for i in full:
            left -= limits[i] - exact[i]
            exact[i] = float(limits[i])
            open_.remove(i)
    counts = [min(int(value + 1e-9), limit) for value, limit in zip(exact, limits)]
    order = sorted(range(len(limits)), key=lambda i: (counts[i] - exact[i], i))
    while sum(counts) < total:
        for i in order:
            if counts[i] < limits[i] and sum(counts) < total:
                counts[i] += 1
    return counts
