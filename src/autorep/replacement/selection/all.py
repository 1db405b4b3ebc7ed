"""all: no ReLU stays. The budget is 0, every activation is a polynomial from the first step on.

With function = "herpn" this is AESPA (Park et al., 2022); `pillar` adds that method's regularisation.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from autorep.errors import BudgetError
from autorep.replacement.selection.base import Context, Selection


class Everything(Selection):
    """Nothing to choose."""

    divides: ClassVar[bool] = False

    def begin_(self, ctx: Context) -> None:
        if ctx.budget:
            raise BudgetError(f"this method replaces every ReLU and the budget is {ctx.budget:,}; give budget = 0")
        ctx.handle.set_masks_({name: torch.zeros_like(site.mask) for name, site in ctx.handle.sites.items()})
