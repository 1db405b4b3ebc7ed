"""DaPa: the polynomial closest to a ReLU in mean square when its input is normal with given mean and deviation.

With z = (Z − μ)/σ and h = μ/σ, the best polynomial of degree d is the Hermite series of relu(σ(h + z)) cut off after
He_d, because the probabilists' Hermite polynomials are orthogonal under the normal density:

    g(Z) = σ·[k0 + k1·He_1(z) + k2·He_2(z) + …],   He_1 = z, He_2 = z² − 1, He_3 = z³ − 3z, …
    k0 = φ(h) + h·Φ(h),  k1 = Φ(h),  k_j = (−1)^j·He_{j−2}(h)·φ(h)/j!  for j ≥ 2

The coefficients depend on h alone, so nothing divides by σ: a dead channel (σ = 0) gives finite numbers. ReLU6 is
relu(Z) − relu(Z − 6), so its coefficients are the difference of two such series; a leaky ReLU is a·Z + (1 − a)·relu(Z).
Of any other activation f the same integrals k_j = E[f(μ + σz)·He_j(z)] / (σ·j!) are summed numerically.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from autorep.replacement.kept import KEPT

CAP = 6.0  # upper knee of ReLU6
FURTHEST, POINTS = 9.0, 4097  # standard deviations and points of the numerical integrals


def hermite_values(x: Tensor, degree: int) -> Tensor:
    """He_0(x) … He_degree(x), stacked along a new first dimension."""
    values = [torch.ones_like(x), x]
    for j in range(1, degree):
        values.append(x * values[j] - j * values[j - 1])
    return torch.stack(values[: degree + 1])


def hermite_to_powers(degree: int) -> Tensor:
    """Matrix T (float64) with He_j(z) = Σ_i T[i, j]·z**i."""
    table = torch.zeros(degree + 1, degree + 1, dtype=torch.float64)
    table[0, 0] = 1.0
    for j in range(1, degree + 1):
        table[1:, j] = table[:-1, j - 1]
        if j >= 2:
            table[:, j] -= (j - 1) * table[:, j - 2]
    return table


def dapa(
    mean: Tensor, std: Tensor, degree: int = 2, activation: str = "relu", arguments: Sequence[float] = ()
) -> Tensor:
    """Hermite coefficients k of the best polynomial, float64, shape (degree + 1, *mean.shape); any degree ≥ 1.

    Closed form for ReLU, ReLU6 and leaky ReLU, exact to rounding for |mean/std| up to 40 and beyond; finite also where
    std is 0. SiLU sites become ReLU sites, and so does their polynomial. Others by `quadrature`, where std is above 0.
    """
    mean, std = mean.double(), std.double()
    if activation not in ("relu", "relu6", "silu", "leaky_relu"):
        return quadrature(mean, std, degree, lambda z: KEPT[activation](z, *arguments))
    series = _relu_series(_ratio(mean, std), degree)
    if activation == "leaky_relu":
        series = (1 - arguments[0]) * series
        series[0] += arguments[0] * _ratio(mean, std)
        series[1] += arguments[0]
    if activation == "relu6":
        series = series - _relu_series(_ratio(mean - CAP, std), degree)
    return series


def quadrature(mean: Tensor, std: Tensor, degree: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The same coefficients of any function, by the trapezoidal rule: to rounding, with kinks within 1e-5."""
    z = torch.linspace(-FURTHEST, FURTHEST, POINTS, dtype=torch.float64, device=mean.device)
    weight = _density(z) * (2 * FURTHEST / (POINTS - 1))
    values = function(mean[..., None] + std[..., None] * z) / std[..., None]
    hermite = hermite_values(z, degree) * weight
    return torch.stack([(values * hermite[j]).sum(-1) / math.factorial(j) for j in range(degree + 1)])


def polynomial(z: Tensor, terms: Tensor) -> Tensor:
    """Σ_i terms[i]·z**i by Horner's rule; terms[i] broadcasts against z."""
    value = terms[-1]
    for i in range(terms.shape[0] - 2, -1, -1):
        value = value * z + terms[i]
    return value


def powers_of_input(terms: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Coefficients of Z**i, float64, from those of z**i with z = (Z − mean)/std; lowest power first."""
    terms, mean, std = terms.double(), mean.double(), std.double()
    powers = torch.zeros_like(terms)
    for i in range(terms.shape[0] - 1, -1, -1):
        # powers ← powers·(Z − mean)/std + terms[i]
        shifted = torch.roll(powers, 1, dims=0)
        shifted[0] = 0.0
        powers = (shifted - mean * powers) / std
        powers[0] += terms[i]
    return powers


_VANISHED = 50.0  # φ(h) is 0 in double precision from |h| = 39 on


def _ratio(mean: Tensor, std: Tensor) -> Tensor:
    """h = mean/std, finite where std is 0."""
    return mean / std.clamp_min(1e-30)


def _density(ratio: Tensor) -> Tensor:
    """φ(h)."""
    return torch.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)


def _mills(ratio: Tensor) -> Tensor:
    """Φ(h)/φ(h) for h ≤ 0 without underflow."""
    return math.sqrt(math.pi / 2) * torch.special.erfcx(-ratio / math.sqrt(2))


def _relu_series(ratio: Tensor, degree: int) -> Tensor:
    """k_0 … k_degree of relu(h + z)."""
    near = ratio.clamp(-_VANISHED, _VANISHED)  # keeps He_j(h)·φ(h) from becoming ∞·0
    density = _density(near)
    # E[relu(h + z)] = φ + hΦ; on the negative side the two almost cancel, so both are taken as multiples of φ.
    negative = -near.abs()
    tail_mean = density * (1 + negative * _mills(negative))
    series = [tail_mean + ratio.clamp_min(0.0), torch.special.ndtr(near)]
    hermite = hermite_values(near, max(degree - 2, 0))
    for j in range(2, degree + 1):
        series.append((-1) ** j * hermite[j - 2] * density / math.factorial(j))
    return torch.stack(series[: degree + 1])
