"""delphi: a planner chooses whole layers to replace, and their ReLUs fade into polynomials (Mishra et al., 2020).

The planner scores a network by accuracy·(1 + replaced/all) and replaces greedily, one layer after another, the one that
leaves the highest score; first and last layer go last. It stops as soon as the ReLUs left are within the budget. The
original searches by a population of networks and trains each.

In training every replaced layer computes g·relu + (1 − g)·poly with g falling linearly from 1 to 0 over the selection.
Delphi's polynomial is the function "delphi", 0.1992 + 0.5002·x + 0.1997·x².
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from autorep.replacement.selection.base import Context
from autorep.replacement.selection.layers import Layers, keep_layers_, sizes
from autorep.replacement.selection.scores import accuracy


class Delphi(Layers):
    """The masks carry the plan from the start; the gate is a function of the step."""

    def begin_(self, ctx: Context) -> None:
        def measure(kept: Collection[str]) -> float:
            keep_layers_(ctx, kept)
            return accuracy(ctx)

        keep_layers_(ctx, greedy(sizes(ctx), ctx.budget, measure))

    @torch.no_grad()
    def choose_(self, ctx: Context, step: int) -> int:
        for site in ctx.handle.sites.values():
            site.soft = True
            site.aux.copy_(torch.maximum(site.mask.to(site.aux.dtype), site.aux.new_tensor(fade(step, ctx.steps))))
        return 0


def fade(step: int, steps: int) -> float:
    """The gate of a replaced layer: 1 at the first step, 0 at the last, linear between them."""
    return max(1.0 - step / max(steps, 1), 0.0)


def score(accuracy: float, replaced: int, total: int) -> float:
    """What the planner maximises: accuracy, and up to twice as much where everything is replaced."""
    return accuracy * (1 + replaced / total)


def greedy(layers: Mapping[str, int], budget: int, measure: Callable[[Collection[str]], float]) -> list[str]:
    """The layers that keep their ReLUs, at most `budget` in all; `measure` gives the accuracy of such a choice."""
    names, total = list(layers), sum(layers.values())
    kept = list(names)
    while (left := sum(layers[name] for name in kept)) > budget:
        inner = [name for name in kept if name not in (names[0], names[-1])] or kept

        def without(name: str) -> list[str]:
            return [other for other in kept if other != name]

        gain = {name: score(measure(without(name)), total - left + layers[name], total) for name in inner}
        kept.remove(max(inner, key=lambda name: gain[name]))
    return kept
