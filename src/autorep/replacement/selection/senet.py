"""senet: layer quotas first, then elements within each layer (Kundu et al., 2023).

A layer's quota follows its sensitivity: the mean score of its elements times their number, no more than it has. The
original reads sensitivities off weight pruning; here they are measured, as for `ramp`. Masks start at random within the
quotas; after every epoch each layer takes the elements at which relu and polynomial differ most over the calibration
images, as the original does with teacher and student (here both are fed by the student's own inputs, so a run can be
resumed from its model alone). Its matching of attention maps is what the setting `features` does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autorep.replacement.moments import all_reduce_, evaluating, inputs_of
from autorep.replacement.selection.base import Context, NoSettings, Selection
from autorep.replacement.selection.random import random_scores
from autorep.replacement.selection.scores import quotas, task_loss


class Senet(Selection[NoSettings]):
    """Quotas stay as they are found at the start; the masks carry them."""

    def begin_(self, ctx: Context) -> None:
        scores = ctx.handle.sensitivity_(ctx.model, ctx.batches(), task_loss)
        ctx.handle.start_from_(random_scores(ctx))
        ctx.handle.step_quotas_(quotas(ctx, [float(score.sum()) for score in scores.values()]))

    def epoch_(self, ctx: Context) -> bool:
        kept = [int(site.mask.sum()) for site in ctx.handle.sites.values()]
        ctx.handle.start_from_(mismatch(ctx))
        ctx.handle.step_quotas_(kept)
        return False


@torch.no_grad()
def mismatch(ctx: Context) -> dict[str, Tensor]:
    """Σ|relu − poly| of every element over the calibration images and processes."""
    sums: dict[str, Tensor] = {}
    hooks = []
    for name, site in ctx.handle.sites.items():
        sums[name] = torch.zeros(site.mask.shape, dtype=torch.float64, device=site.mask.device)

        def follow(module, args, name=name, site=site):
            z = args[0].float()
            sums[name] += (site.keep(z) - site.poly(z)).abs().sum(0, dtype=torch.float64)

        hooks.append(site.register_forward_pre_hook(follow))
    try:
        with evaluating(ctx.model):
            for batch in ctx.batches():
                ctx.model(inputs_of(batch)[0])
    finally:
        for hook in hooks:
            hook.remove()
    return {name: all_reduce_(value) for name, value in sums.items()}
