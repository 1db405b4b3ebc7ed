"""pillar: a polynomial in place of every ReLU, its inputs held in the interval it was fitted on (Diaa et al., 2023).

The functions are `pillar2` and `pillar4`, least squares on ±5. In training inputs are cut off at ±5, and the loss has
5e-5·Σ mean|x/4.8|^p added over all layers: a wall that is soft at first, p = 4 in the first epoch, then 6, 8 and 10.
At inference nothing is cut off. Masks must not be final before the end (freeze_at = 1), for then the wall is gone.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from autorep.replacement.selection.all import Everything
from autorep.replacement.selection.base import Context
from autorep.replacement.settings import PillarSettings

FIRST_POWER, LAST_POWER = 4, 10


class Pillar(Everything):
    """Inputs are seen by hooks on the sites, which do nothing once the masks are final."""

    Settings: ClassVar[type] = PillarSettings

    def __init__(self, settings: PillarSettings) -> None:
        super().__init__(settings)
        self._walls: list[Tensor] = []
        self._power = FIRST_POWER
        self._watched = False

    def choose_(self, ctx: Context, step: int) -> int:
        self._power = power(step // ctx.epoch_steps)
        self._walls.clear()
        if not self._watched:
            for site in ctx.handle.sites.values():
                site.register_forward_pre_hook(self._watch)
            self._watched = True
        return 0

    def penalty(self, ctx: Context) -> Tensor | None:
        walls, self._walls = self._walls, []
        return self.settings.weight * torch.stack(walls).sum() if walls else None

    def _watch(self, site: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        if not site.training or bool(site.frozen) or not torch.is_grad_enabled():
            return None
        (z,) = args
        self._walls.append(wall(z, self.settings.wall, self._power))
        return (z.clamp(-self.settings.reach, self.settings.reach),)


def power(epoch: int) -> int:
    """4, 6, 8, then 10."""
    return min(FIRST_POWER + 2 * epoch, LAST_POWER)


def wall(z: Tensor, at: float, power: int) -> Tensor:
    """mean|z/at|^p."""
    return (z.float() / at).abs().pow(power).mean()
