"""latency: so many seconds on a named link instead of so many ReLUs; the cost model says what they buy.

The plan (`prices.plan`) names layers that become straight lines and the ReLUs that the others keep. Damage is what
`ramp` ranks by, squared so that it adds up: the distillation loss that replacing an element alone would cost, by its
quadratic or by its line. Then the course is `ramp`'s, down to the plan's number of ReLUs; layers that are to be lines
lose theirs first and get none again. While it trains, elements may change places between the layers that keep some.
"""

from __future__ import annotations

import torch

from autorep.errors import ConfigError
from autorep.replacement.prices import plan
from autorep.replacement.selection.base import Context
from autorep.replacement.selection.ramp import Ramp, ramp_scores

BARRED = -1e3  # aux of a line's elements, whose others lie in (0, 1] and move by some thousandths a step


class Latency(Ramp):
    """The state is the number of ReLUs; lines are in the coefficients."""

    def begin_(self, ctx: Context) -> None:
        if ctx.prices is None:
            raise ConfigError("method = latency: nobody said what activations cost; give begin(…, prices=…)")
        sites = ctx.handle.sites
        by_quadratic = {name: score.square() for name, score in ramp_scores(ctx).items()}
        former = {name: site.coefficients.detach().clone() for name, site in sites.items()}
        for site in sites.values():
            site.straighten_()
        by_line = {name: score.square() for name, score in ramp_scores(ctx).items()}
        chosen = plan(ctx.prices(), by_quadratic, by_line)
        scores = {}
        with torch.no_grad():
            for name, site in sites.items():
                if name not in chosen.lines:
                    site.coefficients.copy_(former[name])
                kept = torch.from_numpy(chosen.kept[name]).to(site.mask.device)
                rank = by_quadratic[name] / by_quadratic[name].max().clamp_min(1e-30)
                scores[name] = rank + 2.0 * kept
            ctx.handle.start_from_(scores)
            for name in chosen.lines:
                sites[name].aux.fill_(BARRED)
        self.state = {"relus": float(chosen.relus)}
        self._adopt(ctx)

    def choose_(self, ctx: Context, step: int) -> int:
        self._adopt(ctx)
        return super().choose_(ctx, step)

    def _adopt(self, ctx: Context) -> None:
        """The plan's number of ReLUs as the budget, also of a run that goes on."""
        ctx.budget = int(self.state["relus"])
        ctx.handle.budget = ctx.budget
