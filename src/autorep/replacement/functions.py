"""What a replaced activation becomes: a table of functions, each a polynomial in the site's input.

`identity`, `zero`, `square`, `square_plus`, `quarter`, `delphi`, `pillar2` and `pillar4` are the same polynomial
everywhere; `fit2`, the default, is fitted to each channel's own inputs by least squares (see `fitting`), `dapa1` to
`dapa8`, the paper's, to their mean and deviation as if they were normal (see `dapa`); `herpn` normalises its terms by
batch statistics (see `herpn`). Any of them can be trained further, or held as it is (coefficient_rate = 0). Identity
and zero have degree 1, because a site of degree 2 keeps its curvature above 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autorep.errors import ConfigError
from autorep.replacement.activation import MaskedActivation
from autorep.settings import nearest

MAXIMUM_DEGREE = 8


@dataclass(frozen=True)
class Function:
    """A polynomial to replace activations by.

    Attributes:
        degree: of the sites that carry it; at least 1.
        powers: coefficients of Z⁰, Z¹, …, or None where they are fitted to the site's moments.
        polynomial: kind of site that computes it, as `replace_activations_` takes it.
        sampled: whether it is fitted to a sample of the inputs, which the whole network must be run for; where a site
            cannot be (one polynomial for all channels), it has the one of the moments.
    """

    degree: int
    powers: tuple[float, ...] | None = None
    polynomial: str = "free"
    sampled: bool = False

    def apply_(self, site: MaskedActivation, curve: float = 1.0) -> None:
        """Give a calibrated site this polynomial; of a fitted one, a share `curve` of its curvature."""
        if self.powers is None:
            site.set_moments_(site.mean.clone(), site.std.clone(), curve)
        else:
            site.set_powers_(torch.tensor(self.powers, dtype=torch.float64))


FUNCTIONS: dict[str, Function] = {
    "identity": Function(1, (0.0, 1.0)),
    "zero": Function(1, (0.0, 0.0)),
    "square": Function(2, (0.0, 0.0, 1.0)),
    "square_plus": Function(2, (0.0, 1.0, 1.0)),
    "quarter": Function(2, (0.0, 0.5, 0.25)),
    "delphi": Function(2, (0.1992, 0.5002, 0.1997)),
    # PILLAR's: least squares on ±5, coefficients in units of 1/1024. The odd part of a ReLU is x/2, exactly.
    "pillar2": Function(2, (480 / 1024, 0.5, 96 / 1024)),
    "pillar4": Function(4, (300 / 1024, 0.5, 168 / 1024, 0.0, -3 / 1024)),
    "herpn": Function(2, polynomial="herpn"),
    "fit2": Function(2, sampled=True),
    **{f"dapa{degree}": Function(degree) for degree in range(1, MAXIMUM_DEGREE + 1)},
}


def function(name: str) -> Function:
    """The function of that name, or a ConfigError with the nearest valid one."""
    if name not in FUNCTIONS:
        raise ConfigError(f"function = {name}: no such replacement function; {nearest(name, list(FUNCTIONS))}")
    return FUNCTIONS[name]
