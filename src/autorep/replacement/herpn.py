"""HermiteNorm: AESPA's polynomial (Park et al., 2022), whose terms are normalised one by one by batch statistics.

HerPN(x) = γ·[f₀ + f₁·N(h₁(x)) + f₂·N(h₂(x))] + β with h₁ = x, h₂ = (x² − 1)/√2, N the batch norm of a channel without
scale and shift, and f = (1/√2π, 1/2, 1/√4π), the Hermite series of the ReLU. In training N takes the batch's mean and
variance and follows them; afterwards HerPN is an ordinary quadratic,

    a = γ/√(8π·v₂),  b = γ/(2·√v₁),  c = γ·[f₀ − m₁/(2·√v₁) − (m₂ + 1/√2)/√(4π·v₂)] + β.

The original puts it in the place of batch norm and ReLU together; here the batch norm before it stays.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autorep.errors import ConfigError
from autorep.replacement import dapa
from autorep.replacement.activation import MINIMUM_STD, MaskedActivation, wide

F0, F1, F2 = 1 / math.sqrt(2 * math.pi), 0.5, 1 / math.sqrt(4 * math.pi)
FOLLOW = 0.1  # share of a batch's statistics in the running ones
LEAST_VARIANCE = 1e-5


class HermiteNorm(MaskedActivation):
    """Row 0 of `coefficients` is γ, row 1 is β.

    Attributes:
        statistics: running m₁, v₁, m₂, v₂ of every channel.
    """

    native = False

    def __init__(self, shape: tuple[int, ...], **options: Any) -> None:
        super().__init__(shape, **options)
        self.coefficients = torch.nn.Parameter(self.coefficients.detach()[:2].clone())
        self.statistics: Tensor
        self.register_buffer("statistics", torch.zeros(4, self.channels, device=self.mask.device))
        self.set_moments_(self.mean, self.std)

    def poly(self, z: Tensor) -> Tensor:
        first, second = z, (z.square() - 1) / math.sqrt(2)
        if self.training and torch.is_grad_enabled():
            found = torch.stack([*_moments(first), *_moments(second)])
            with torch.no_grad():
                self.statistics.lerp_(found.to(self.statistics.dtype), FOLLOW)
        else:
            found = self.statistics
        m1, v1, m2, v2 = (row.view(wide(z)) for row in found)
        series = F0 + F1 * _normal(first, m1, v1) + F2 * _normal(second, m2, v2)
        scale, shift = (row.view(wide(z)) for row in self.coefficients)
        return scale * series + shift

    @torch.no_grad()
    def set_moments_(self, mean: Tensor, std: Tensor, curve: float = 1.0) -> None:
        """Statistics of a normal input with these moments; γ and β bring the value near the ReLU's."""
        self.mean.copy_(mean)
        self.std.copy_(std.clamp_min(MINIMUM_STD))
        self.moments.copy_(torch.stack([self.mean, self.std.square()]))
        if "statistics" not in self._buffers:
            return  # while the base class is being set up
        m, v = self.mean, self.std.square()
        rows = m, v, (m.square() + v - 1) / math.sqrt(2), v.square() + 2 * m.square() * v
        self.statistics.copy_(torch.stack(rows))
        average = dapa.dapa(m, self.std, 1, self.activation, self.arguments)[0].to(m.dtype)
        self.coefficients.copy_(torch.stack([self.std, self.std * (average - F0)]))

    def straighten_(self) -> None:
        raise ConfigError("function = herpn has no straight form; use dapa2 where layers may become lines")

    @torch.no_grad()
    def power_coefficients(self) -> Tensor:
        m1, v1, m2, v2 = self.statistics.double()
        scale, shift = self.coefficients.double()
        line = F1 * torch.rsqrt(v1 + LEAST_VARIANCE)
        curve = F2 * torch.rsqrt(v2 + LEAST_VARIANCE)
        constant = F0 - line * m1 - curve * (m2 + 1 / math.sqrt(2))
        return torch.stack([scale * constant + shift, scale * line, scale * curve / math.sqrt(2)])


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every channel over the batch and all positions."""
    flat = values.transpose(0, 1).flatten(1).to(torch.promote_types(values.dtype, torch.float32))
    variance, mean = torch.var_mean(flat, dim=1, correction=0)
    return mean, variance


def _normal(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return (values - mean) * torch.rsqrt(variance + LEAST_VARIANCE)
