"""taylor: how much the loss changes when an element alone is replaced, to second order; kept by an exact ramp.

The score is E|d·g| + ½·E[(d·g)²] with d = relu − poly and g = dL/dX of each image, the second term with the empirical
Fisher information in place of the Hessian. For the identity, d is −x where x < 0 and 0 elsewhere, so this is the score
that ReLUPruner writes as |x·g|·P(x < 0) + ½·x²g², without its weight per layer.
"""

from __future__ import annotations

from torch import Tensor

from autorep.replacement.selection.base import Context
from autorep.replacement.selection.ramp import Ramp
from autorep.replacement.selection.scores import task_loss


class Taylor(Ramp):
    """Scores by Taylor expansion instead of by Fisher information of softened answers; the rest as `ramp`."""

    def begin_(self, ctx: Context) -> None:
        ctx.handle.start_from_(taylor_scores(ctx))


def taylor_scores(ctx: Context) -> dict[str, Tensor]:
    """E|d·g| + ½·E[(d·g)²] by site."""
    size = ctx.handle.sensitivity_(ctx.model, ctx.batches(), task_loss, "size")
    rms = ctx.handle.sensitivity_(ctx.model, ctx.batches(), task_loss, "rms")
    return {name: size[name] + 0.5 * rms[name].square() for name in size}
