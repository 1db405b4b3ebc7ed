"""snip: single-shot pruning by connection sensitivity, carried over from weights to ReLUs.

An element's score is |dL/dm| of its mask m at m = 1, the mean over the calibration images of (relu − poly)·dL/dX; the
top N stay, at once, and the network is trained with them. Images that disagree cancel, unlike in `ramp`'s score.
"""

from __future__ import annotations

from torch import Tensor

from autorep.replacement.selection.base import Context
from autorep.replacement.selection.scores import AtOnce, task_loss


class Snip(AtOnce):
    """One-shot: |E[(relu − poly)·dL/dX]|, the highest N."""

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        return ctx.handle.sensitivity_(ctx.model, ctx.batches(), task_loss, "mean")
