"""l1: filter pruning's question, put to ReLUs. Whole channels stay, those whose filters have the largest L1 norm.

A filter's norm is taken relative to the mean of its layer, since layers differ in size. With function = "zero" a
channel that loses its ReLUs is pruned as filters are; with any other it is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autorep.replacement.moments import evaluating, inputs_of
from autorep.replacement.selection.base import Context
from autorep.replacement.selection.safenet import Channels


class L1(Channels):
    """Channels by the norm of the filter that feeds them."""

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        feeding = filters(ctx)
        scores = {}
        for name, site in ctx.handle.sites.items():
            norms = feeding[name].weight.detach().double().flatten(1).abs().sum(1)
            spread = (norms / norms.mean().clamp_min(1e-30)).reshape(-1, *(1,) * (site.mask.dim() - 1))
            scores[name] = spread.expand(site.mask.shape).clone()
        return scores


@torch.no_grad()
def filters(ctx: Context) -> Mapping[str, nn.Conv2d | nn.Linear]:
    """Of every site, the convolution or linear layer with its channels that ran last before it."""
    ran: list[nn.Conv2d | nn.Linear] = []
    found: dict[str, nn.Conv2d | nn.Linear] = {}
    hooks = [
        module.register_forward_hook(lambda module, *_: ran.append(module))
        for module in ctx.model.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    for name, site in ctx.handle.sites.items():

        def note(module, *_, name=name, site=site):
            found[name] = next(layer for layer in reversed(ran) if len(layer.weight) == site.channels)

        hooks.append(site.register_forward_pre_hook(note))
    try:
        with evaluating(ctx.model):
            ctx.model(inputs_of(next(iter(ctx.batches())))[0][:1])
    finally:
        for hook in hooks:
            hook.remove()
    return found
