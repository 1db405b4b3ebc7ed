"""ramp: exactly so many ReLUs at every step, falling cubically to the budget; the default."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from autorep.replacement.moments import process_rank
from autorep.replacement.schedule import ramp
from autorep.replacement.selection.base import Context, NoSettings, Selection
from autorep.replacement.softened import TEMPERATURE


class Ramp(Selection[NoSettings]):
    """Auxiliary parameters start from the rank of each element's sensitivity; the top N_t are kept at step t.

    Hysteresis is a swap margin: an outsider enters only when its aux beats an incumbent's by twice as much. The count
    is exact after every step, so there is no penalty weight to choose.
    """

    def begin_(self, ctx: Context) -> None:
        ctx.handle.start_from_(ramp_scores(ctx))

    def choose_(self, ctx: Context, step: int) -> int:
        return ctx.handle.step_exact_(ramp(step, ctx.steps, ctx.handle.total, ctx.budget))


def ramp_scores(ctx: Context) -> dict[str, Tensor]:
    """Of every element, how much of the distillation loss replacing it alone would cost."""
    draw = ctx.generator("labels", process_rank())

    def surprise(logits: Tensor, *_: Tensor) -> Tensor:
        # Labels drawn from the network's own softened answers: the mean square of this gradient is the Fisher
        # information, so scores rank elements by the distillation loss that replacing each alone would cost.
        soft = F.softmax(logits.detach() / TEMPERATURE, dim=1).cpu()
        drawn = torch.multinomial(soft, 1, generator=draw)[:, 0].to(logits.device)
        return F.cross_entropy(logits / TEMPERATURE, drawn)

    return ctx.handle.sensitivity_(ctx.model, ctx.batches(), surprise)
