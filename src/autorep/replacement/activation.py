"""MaskedActivation: X = mask·relu(Z) + (1 − mask)·poly(Z), one module per call site."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autorep.activations import ACTIVATIONS
from autorep.errors import ConfigError, DataError, UnsupportedOpError
from autorep.replacement import dapa, fused
from autorep.replacement.indicator import START, straight_through, surrogate_slope
from autorep.replacement.kept import KEPT

MINIMUM_STD = 1e-3  # a dead channel's z = (Z − mean)/std stays harmless when it wakes up
MINIMUM_CURVE = 1e-8  # smallest k2: keeps the quadratic convex and its trainable form finite
STRAIGHT = -1e4  # row 2 of a line: its softplus is 0 in any precision
MOMENTUM = 0.1  # of the running moments, after a plain average over the first ten batches


def trainable_curve(k2: Tensor) -> Tensor:
    """Row 2 of `coefficients` for this curvature: the inverse of softplus, at the smallest curvature or above."""
    k2 = k2.clamp_min(MINIMUM_CURVE)
    return k2 + torch.log(-torch.expm1(-k2))


class MaskedActivation(nn.Module):
    """One activation call site: kept elements go through the activation, all others through their channel's poly.

    The polynomial is held in the centred basis of DaPa, z = (Z − mean)/std:
    poly(Z) = std·[k0 + k1·z + k2·(z² − 1) + …]. Row j of `coefficients` is k_j, except row 2 of a quadratic, which
    holds the inverse softplus of k2: however it is trained, k2 = softplus(row 2) > 0, so it stays convex. mean and std
    are fixed numbers, not trained. Channels are dimension 1 of the input; with granularity "layer" there is one
    polynomial for all of them.

    Attributes:
        aux: trainable stand-in of the mask, shape of one image's activation.
        coefficients: (degree + 1, channels), or (degree + 1, 1) for granularity "layer".
        mask: uint8, 1 keeps the activation; changed by Replacement only, never in forward.
        mean, std: of Z, as last calibrated.
        moments: running mean and variance of Z, followed in training forwards while `tracking` is on.
        activation: "relu", "relu6" or another of `autorep.activations`; arguments: its settings there.
        frozen: 1 when the mask is final and aux no longer trains.
        soft: while on, aux itself is the mask, a gate that mixes activation and polynomial; for methods that train or
            fade a gate before they choose.
        native: whether the polynomial is one that the native kernel computes.
        range_limit: None, or the |z| beyond which training forwards collect the range penalty.
        input_limit: |z| at which training forwards cut their input off, so that one image's outlier cannot blow up a
            chain of quadratics. No gradient passes a polynomial there, for the same reason; the range penalty still
            pulls outliers in. Infinity, the start, does not cut off; evaluation never does.
        slope_limit: largest slope with which a polynomial passes gradients on in training forwards; infinity, the
            start, leaves them as they are.
        range_sum: None, or the range penalty of each image of the last training forward with a range_limit.
    """

    native = True

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        activation: str = "relu",
        arguments: tuple[float, ...] | None = None,
        degree: int = 2,
        granularity: str = "channel",
        surrogate: str = "softplus",
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.arguments = ACTIVATIONS[activation].defaults if arguments is None else arguments
        self.degree = degree
        self.granularity = granularity
        self.surrogate = surrogate
        self.channels = shape[0]
        self.tracking = False
        self.soft = False
        self.range_limit: float | None = None
        self.input_limit = math.inf
        self.slope_limit = math.inf
        self.range_sum: Tensor | None = None
        polynomials = self.channels if granularity == "channel" else 1
        self.aux = nn.Parameter(torch.full(shape, START, device=device))
        self.coefficients = nn.Parameter(torch.zeros(degree + 1, polynomials, device=device))
        self.mask: Tensor
        self.mean: Tensor
        self.std: Tensor
        self.moments: Tensor
        self.moment_steps: Tensor
        self.frozen: Tensor
        self.basis: Tensor
        self.register_buffer("mask", torch.ones(shape, dtype=torch.uint8, device=device))
        self.register_buffer("mean", torch.zeros(polynomials, device=device))
        self.register_buffer("std", torch.ones(polynomials, device=device))
        self.register_buffer("moments", torch.stack([self.mean, self.std]))
        self.register_buffer("moment_steps", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("frozen", torch.zeros((), dtype=torch.uint8, device=device))
        basis = dapa.hermite_to_powers(degree).float()
        self.register_buffer("basis", basis.to(device), persistent=False)
        self.set_moments_(self.mean, self.std)

    def forward(self, z: Tensor) -> Tensor:
        if z.shape[1:] != self.mask.shape:
            raise DataError(
                f"activation of shape {tuple(z.shape[1:])} per image where the mask has {tuple(self.mask.shape)}: a"
                " mask belongs to the size of the example input; feed images of that size, or replace the activations"
                " of a fresh model with an example of the new size"
            )
        if self.training and self.tracking:
            self._follow_moments(z)
        learning = self.training and torch.is_grad_enabled()
        run = MaskedActivation.one_pass if self.fits_kernel(z) else MaskedActivation.reference
        limits = (self.range_limit, self.input_limit, self.slope_limit) if learning else (None, math.inf, math.inf)
        x, range_sum = run(self, z, *limits)
        if range_sum is not None:
            self.range_sum = range_sum
        return x

    def fits_kernel(self, z: Tensor) -> bool:
        """Whether the native kernel can run this site; otherwise (degree 3, other inputs) torch does."""
        plain = self.native and self.degree <= 2 and self.activation in ("relu", "relu6")
        return plain and self.coefficients.dtype == torch.float32 and fused.usable(z)

    def one_pass(
        self, z: Tensor, range_limit: float | None, input_limit: float, slope_limit: float
    ) -> tuple[Tensor, Tensor | None]:
        """The same as `reference`, in one pass."""
        cap = dapa.CAP if self.activation == "relu6" else math.inf
        limits = (cap, math.inf if range_limit is None else range_limit, input_limit, slope_limit)
        surrogate = None if self.soft else self.surrogate
        x, range_sum = fused.FusedActivation.apply(
            z, self.aux, self.coefficients, self.mask, self.mean, self.std, surrogate, limits
        )
        return x, None if range_limit is None else range_sum

    def reference(
        self,
        z: Tensor,
        range_limit: float | None = None,
        input_limit: float = math.inf,
        slope_limit: float = math.inf,
    ) -> tuple[Tensor, Tensor | None]:
        """Forward in plain torch operations, and each image's Σ (1 − mask)·relu(|z| − limit)² when a limit is given."""
        dtype, cut = z.dtype, z
        if input_limit < math.inf:
            low, high = (bound.view(wide(z)) for bound in self.held_between(input_limit))
            cut = torch.clamp(z.to(torch.promote_types(dtype, low.dtype)), low, high)
            z = _StraightThroughClamp.apply(z.to(cut.dtype), low, high)
        poly = self.poly(cut if slope_limit == math.inf else cut.detach())
        if slope_limit < math.inf:
            slope = self._slope(cut.detach()).clamp(-slope_limit, slope_limit)
            poly = poly + slope * (cut - cut.detach())
        mask = self.aux if self.soft else straight_through(self.mask, self.aux, self.surrogate)
        x = (mask * self.keep(z) + (1 - mask) * poly).to(dtype)
        if range_limit is None:
            return x, None
        excess = (1 - self.mask) * F.relu(self._scaled(z).abs() - range_limit).square()
        return x, excess.flatten(1).sum(1)

    def held_between(self, deviations: float) -> tuple[Tensor, Tensor]:
        """Per channel, the inputs so many deviations below and above the mean."""
        return self.mean - deviations * self.std, self.mean + deviations * self.std

    def poly(self, z: Tensor) -> Tensor:
        """What a replaced element goes through."""
        return dapa.polynomial(self._scaled(z), self.terms().view(self.degree + 1, *wide(z)))

    def keep(self, z: Tensor) -> Tensor:
        """What a kept element goes through."""
        return KEPT[self.activation](z, *self.arguments)

    def hermite(self) -> Tensor:
        """k_0 … k_degree, differentiable in `coefficients`."""
        if self.degree != 2:
            return self.coefficients
        return torch.cat([self.coefficients[:2], F.softplus(self.coefficients[2:])])

    def terms(self) -> Tensor:
        """Coefficients of z**i including the factor std, shape (degree + 1, channels or 1)."""
        return (self.basis @ self.hermite()) * self.std

    def slope(self) -> Tensor:
        """dm/daux at the present aux."""
        return surrogate_slope(self.aux.detach(), self.surrogate)

    @torch.no_grad()
    def set_moments_(self, mean: Tensor, std: Tensor, curve: float = 1.0) -> None:
        """Centre the polynomial at these moments and make it DaPa's, with a share `curve` of its curvature k2."""
        self.mean.copy_(mean)
        self.std.copy_(std.clamp_min(MINIMUM_STD))
        self.moments.copy_(torch.stack([self.mean, self.std.square()]))
        series = dapa.dapa(self.mean, self.std, self.degree, self.activation, self.arguments)
        if self.degree >= 2:
            series[2] *= curve
        self._set_series(series)

    @torch.no_grad()
    def set_powers_(self, powers: Tensor) -> None:
        """Make the polynomial Σ powers[i]·Z**i, alike in every channel, around the moments as last calibrated."""
        if len(powers) > self.degree + 1:
            raise ConfigError(f"a polynomial of degree {len(powers) - 1} for a site of degree {self.degree}")
        mean, std = self.mean.double(), self.std.double()
        terms = torch.zeros(self.degree + 1, len(mean), dtype=torch.float64, device=mean.device)
        for power in powers.double().flip(0).to(mean.device):  # Horner's rule in z, with Z = mean + std·z
            terms = mean * terms + std * F.pad(terms[:-1], (0, 0, 1, 0))
            terms[0] += power
        to_hermite = torch.linalg.inv(dapa.hermite_to_powers(self.degree)).to(mean.device)
        self._set_series(to_hermite @ (terms / std))

    @torch.no_grad()
    def straighten_(self) -> None:
        """Make the polynomial a straight line for good: k2 = softplus(row 2) is exactly 0, and so is its gradient."""
        if self.degree == 2:
            self.coefficients[2].fill_(STRAIGHT)
        elif self.degree > 2:
            raise ConfigError(f"a polynomial of degree {self.degree} cannot be made a line; use degree 2")

    def _set_series(self, series: Tensor) -> None:
        if self.degree == 2:
            series[2] = trainable_curve(series[2])
        self.coefficients.copy_(series)

    @torch.no_grad()
    def power_coefficients(self) -> Tensor:
        """Float64 coefficients of Z**i per channel, lowest power first, shape (degree + 1, channels)."""
        series = self.coefficients.double()
        if self.degree == 2:
            series[2] = F.softplus(series[2])
        terms = (dapa.hermite_to_powers(self.degree).to(series.device) @ series) * self.std.double()
        powers = dapa.powers_of_input(terms, self.mean, self.std)
        return powers.expand(-1, self.channels).clone()

    def poly_coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        """(a, b, c) of a·Z² + b·Z + c per channel, float64, for the compiler."""
        if self.degree > 2:
            raise UnsupportedOpError(
                f"polynomials of degree {self.degree} cannot run in two-party inference; replace with degree=2 or 1"
            )
        powers = self.power_coefficients()
        a = powers[2] if self.degree == 2 else torch.zeros_like(powers[0])
        return a, powers[1], powers[0]

    def kept_index(self) -> Tensor:
        """Sorted flat positions (channel, row, column) of the kept elements, int64."""
        return self.mask.reshape(-1).nonzero().reshape(-1)

    @property
    def calibrated(self) -> bool:
        """Whether the polynomial was ever centred at moments of a real input; exactly 0 and 1 are how it starts."""
        return bool((self.mean != 0).any() or (self.std != 1).any())

    @torch.no_grad()
    def freeze_(self, aux_has_gradients: bool = False) -> None:
        """Make the mask final: aux stops training."""
        self.soft = False
        self.frozen.fill_(1)
        self.aux.requires_grad_(aux_has_gradients)

    def extra_repr(self) -> str:
        shape = tuple(self.mask.shape)
        return f"{shape}, activation={self.activation!r}, degree={self.degree}, granularity={self.granularity!r}"

    def _scaled(self, z: Tensor) -> Tensor:
        """z in standard deviations from the mean."""
        return (z - self.mean.view(wide(z))) / self.std.view(wide(z))

    @torch.no_grad()
    def _slope(self, z: Tensor) -> Tensor:
        """The polynomial's derivative."""
        powers = self.power_coefficients()[1:]
        factors = torch.arange(1, self.degree + 1, device=z.device).view(-1, 1)
        return dapa.polynomial(z, (factors * powers).to(z.dtype).view(self.degree, *wide(z)))

    @torch.no_grad()
    def _follow_moments(self, z: Tensor) -> None:
        # Batch norm's own statistics: ten times as fast as var_mean where channels come last in memory.
        mean, variance = torch.batch_norm_update_stats(z.float(), None, None, 0.0)
        if self.granularity == "layer":
            mean, variance = mean.mean(), variance.mean() + mean.var(correction=0)
        self.moment_steps += 1
        weight = (1.0 / self.moment_steps).clamp_min(MOMENTUM)
        self.moments.lerp_(torch.stack([mean, variance]).view_as(self.moments), weight)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.aux.requires_grad_(not bool(self.frozen))
        self.soft = self.soft and not bool(self.frozen)

    def __getstate__(self) -> dict[str, Any]:
        # The collected range penalty hangs on a step's autograd graph, which cannot be copied.
        return {**self.__dict__, "range_sum": None}


class _StraightThroughClamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return torch.clamp(z, low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


def wide(z: Tensor) -> tuple[int, ...]:
    """The shape that spreads one number per channel over z."""
    return (-1,) + (1,) * (z.dim() - 2)
