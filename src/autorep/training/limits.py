"""Cut-off of activation inputs in training, so that one image's outlier cannot blow up a chain of quadratics.

A quadratic amplifies inputs beyond 1/k2 deviations; through several layers such an input grows without bound, and
batch norm then squashes every other image of the batch. In training forwards the inputs of a replaced activation are
therefore held within a few deviations. Gradients pass as if nothing had been cut, so the range penalty still pulls
outliers in; evaluation and inference use the plain polynomial. After the freeze the limit opens up step by step, so
that the network meets, in training, what it will meet without it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from autorep.replacement import MaskedActivation, Replacement


class _StraightThroughClamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return torch.clamp(z, low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


class InputLimit:
    """Holds the inputs of every site within `deviations` of its mean in training forwards; infinity switches it off."""

    def __init__(self, replacement: Replacement) -> None:
        self.deviations = math.inf
        for site in replacement.sites.values():
            site.register_forward_pre_hook(self._hold)

    def _hold(self, site: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        if not site.training or not torch.is_grad_enabled() or math.isinf(self.deviations):
            return None
        assert isinstance(site, MaskedActivation)
        (z,) = inputs
        wide = (-1,) + (1,) * (z.dim() - 2)
        reach = self.deviations * site.std
        low, high = (site.mean - reach).view(wide), (site.mean + reach).view(wide)
        return (_StraightThroughClamp.apply(z, low.to(z.dtype), high.to(z.dtype)),)
