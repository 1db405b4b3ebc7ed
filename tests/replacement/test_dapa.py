import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.activations import ACTIVATIONS
from autorep.replacement.dapa import dapa, hermite_to_powers, hermite_values, polynomial, powers_of_input

NODES, WEIGHTS = np.polynomial.legendre.leggauss(400)


def integrate(function, ratio: float) -> float:
    """E[function(z)] for standard normal z, split at the knee z = −ratio."""
    edges = [-13.0, min(max(-ratio, -13.0), 13.0), 13.0]
    total = 0.0
    for low, high in zip(edges[:-1], edges[1:]):
        if high > low:
            z = (high - low) / 2 * NODES + (high + low) / 2
            density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            total += float(np.sum((high - low) / 2 * WEIGHTS * density * function(z)))
    return total


def hermite(z: np.ndarray, j: int) -> np.ndarray:
    return np.polynomial.hermite_e.hermeval(z, [0.0] * j + [1.0])


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(mean=st.floats(-40, 40), degree=st.integers(1, 5))
def test_coefficients_match_numerical_integration(mean: float, degree: int) -> None:
    got = dapa(tensor(mean), tensor(1.0), degree)
    for j in range(degree + 1):
        want = integrate(lambda z, j=j: np.maximum(mean + z, 0) * hermite(z, j), mean) / math.factorial(j)
        assert abs(float(got[j]) - want) < 1e-12 * max(1.0, abs(mean))


def test_degree_two_and_one_are_the_closed_forms_of_the_method() -> None:
    mean, std = torch.tensor([[-1.3, 0.0, 0.9], [0.7, 1.0, 2.0]], dtype=torch.float64)
    h = mean / std
    phi = torch.exp(-(h**2) / 2) / math.sqrt(2 * math.pi)
    normal = torch.special.ndtr(h)
    series = dapa(mean, std, 2)
    terms = (hermite_to_powers(2) @ series) * std
    powers = powers_of_input(terms, mean, std)
    torch.testing.assert_close(powers[2], phi / (2 * std), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(powers[1], normal - h * phi, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(powers[0], std * phi * (1 + h**2) / 2, rtol=1e-12, atol=1e-12)
    line = powers_of_input((hermite_to_powers(1) @ dapa(mean, std, 1)) * std, mean, std)
    torch.testing.assert_close(line, torch.stack([std * phi, normal]), rtol=1e-12, atol=1e-12)


def test_the_published_example_with_variance_two() -> None:
    mean, std = tensor(0.0).reshape(1), tensor(math.sqrt(2)).reshape(1)
    powers = powers_of_input((hermite_to_powers(2) @ dapa(mean, std, 2)) * std, mean, std)
    assert [round(float(p), 3) for p in powers] == [0.282, 0.5, 0.141]


def test_dead_channels_and_extreme_means_stay_finite() -> None:
    mean = torch.tensor([0.0, 5.0, -5.0, 40.0, -40.0, 1e6])
    std = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1e-3])
    for degree in range(1, 7):
        assert torch.isfinite(dapa(mean, std, degree)).all()


def test_relu6_is_the_difference_of_two_series() -> None:
    mean, std = 2.0, 3.0
    got = dapa(tensor(mean), tensor(std), 2, "relu6")
    grid = np.linspace(-12, 12, 2_000_001)
    density = np.exp(-grid * grid / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    for j in range(3):
        want = np.sum(np.clip(mean + std * grid, 0, 6) * hermite(grid, j) * density) / math.factorial(j) / std
        assert float(got[j]) == pytest.approx(want, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.floats(-3, 3), st.floats(0.2, 3), st.floats(-3, 3))
def test_powers_of_input_is_the_same_polynomial(terms: list[float], mean: float, std: float, x: float) -> None:
    column = torch.tensor(terms, dtype=torch.float64).reshape(-1, 1)
    powers = powers_of_input(column, tensor(mean).reshape(1), tensor(std).reshape(1))
    direct = polynomial(tensor((x - mean) / std), column[:, 0])
    assert float(polynomial(tensor(x), powers[:, 0])) == pytest.approx(float(direct), rel=1e-7, abs=1e-6)


def test_hermite_matrix_agrees_with_the_recurrence() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    table = hermite_to_powers(6)
    want = hermite_values(x, 6)
    for j in range(7):
        torch.testing.assert_close(polynomial(x, table[:, j]), want[j])


@settings(max_examples=30, deadline=None)
@given(
    case=st.sampled_from(
        [("leaky_relu", (0.2,)), ("hardswish", ()), ("gelu", ()), ("elu", (1.5,)), ("tanh", ()), ("mish", ()),
         ("softplus", (2.0, 20.0)), ("hardtanh", (-1.0, 2.0))]
    ),
    mean=st.floats(-5, 5),
    std=st.floats(0.1, 4),
)  # fmt: skip
def test_other_activations_match_numerical_integration(case, mean: float, std: float) -> None:
    """With the function as the activations' table has it, summed finely enough for any kink."""
    name, arguments = case
    got = dapa(tensor(mean), tensor(std), 2, name, arguments)
    z = np.linspace(-12, 12, 200_001)
    weight = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    value = ACTIVATIONS[name].function(mean + std * z, *arguments) / std
    for j in range(3):
        assert abs(float(got[j]) - np.sum(value * hermite(z, j) * weight) / math.factorial(j)) < 2e-5
