"""The table of replacement functions: each site computes exactly the polynomial its name says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autorep.errors import ConfigError
from autorep.replacement import MaskedActivation, replace_activations_
from autorep.replacement.dapa import dapa, hermite_to_powers, powers_of_input
from autorep.replacement.functions import FUNCTIONS, function

POWERS = {
    "identity": lambda z: z,
    "zero": lambda z: 0 * z,
    "square": lambda z: z**2,
    "square_plus": lambda z: z**2 + z,
    "quarter": lambda z: 0.25 * z**2 + 0.5 * z,
    "delphi": lambda z: 0.1992 + 0.5002 * z + 0.1997 * z**2,
}


def calibrated(degree: int, granularity: str = "channel") -> MaskedActivation:
    """A site whose channels have different moments, all elements replaced."""
    site = MaskedActivation((5, 2, 3), degree=degree, granularity=granularity)
    count = 5 if granularity == "channel" else 1
    site.set_moments_(torch.linspace(-2, 3, count), torch.linspace(0.1, 4, count))
    site.mask.zero_()
    return site.double()


@pytest.mark.parametrize("granularity", ["channel", "layer"])
@pytest.mark.parametrize("name", POWERS)
def test_a_fixed_function_is_the_same_polynomial_whatever_the_moments(name, granularity):
    chosen = function(name)
    site = calibrated(chosen.degree, granularity)
    chosen.apply_(site)
    z = torch.randn(4, 5, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(site(z), POWERS[name](z), rtol=1e-6, atol=1e-6)
    expected = torch.zeros(chosen.degree + 1, 5, dtype=torch.float64)
    expected[: len(chosen.powers)] = torch.tensor(chosen.powers, dtype=torch.float64)[:, None]
    torch.testing.assert_close(site.power_coefficients(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("degree", range(1, 9))
def test_dapa_functions_are_the_fitted_polynomials_of_their_degree(degree):
    chosen = function(f"dapa{degree}")
    site = calibrated(degree)
    site.coefficients.data.zero_()
    chosen.apply_(site)
    terms = (hermite_to_powers(degree) @ dapa(site.mean, site.std, degree)) * site.std
    expected = powers_of_input(terms, site.mean, site.std)
    torch.testing.assert_close(site.power_coefficients(), expected, rtol=1e-5, atol=1e-5)


def test_a_share_of_the_curvature_changes_the_second_coefficient_only():
    whole, flat = calibrated(2), calibrated(2)
    function("dapa2").apply_(whole)
    function("dapa2").apply_(flat, 0.2)
    torch.testing.assert_close(flat.hermite()[2], 0.2 * whole.hermite()[2], rtol=1e-5, atol=1e-7)
    assert torch.equal(flat.hermite()[:2], whole.hermite()[:2])


def test_wrong_names_and_degrees_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'dapa2'"):
        function("dappa2")
    with pytest.raises(ConfigError, match="degree 2 for a site of degree 1"):
        FUNCTIONS["square"].apply_(calibrated(1))
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    handle = replace_activations_(model, torch.zeros(1, 1, 6, 6), budget=3)
    from autorep.replacement import CourseSettings

    with pytest.raises(ConfigError, match="degree=1"):
        handle.begin(model, [torch.randn(8, 1, 6, 6)], 10, settings=CourseSettings(function="identity"))
