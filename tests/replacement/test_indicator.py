import math

import pytest
import torch

from autorep.replacement.indicator import hysteresis_step, straight_through, surrogate_slope


@pytest.mark.parametrize(
    ("before", "aux", "after"),
    [
        (1, 0.5, 1),
        (1, 0.003, 1),
        (1, 0.0, 1),
        (1, -0.0029, 1),
        (1, -0.003, 0),
        (1, -0.5, 0),
        (0, -0.5, 0),
        (0, 0.0, 0),
        (0, 0.0029, 0),
        (0, 0.003, 0),
        (0, 0.0031, 1),
        (0, 0.5, 1),
    ],
)
def test_hysteresis_truth_table(before: int, aux: float, after: int) -> None:
    mask = torch.tensor([before], dtype=torch.uint8)
    got = hysteresis_step(mask, torch.tensor([aux], dtype=torch.float64), 0.003)
    assert got.tolist() == [after]
    assert got.dtype == torch.uint8


@pytest.mark.parametrize("surrogate", ["softplus", "sigmoid"])
def test_straight_through_keeps_the_value_and_gives_the_documented_slope(surrogate: str) -> None:
    mask = torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
    aux = torch.tensor([-2.0, 3.0, 0.1, 0.0], requires_grad=True)
    value = straight_through(mask, aux, surrogate)
    assert value.tolist() == [1.0, 0.0, 1.0, 0.0]
    weights = torch.tensor([1.0, 2.0, -1.0, 5.0])
    (value * weights).sum().backward()
    readings = {"softplus": lambda a: math.log1p(math.exp(a)), "sigmoid": lambda a: 1 / (1 + math.exp(-a))}
    want = torch.tensor([readings[surrogate](float(a)) for a in aux.detach()]) * weights
    torch.testing.assert_close(aux.grad, want)


def test_sigmoid_reading_is_the_derivative_of_the_softplus_reading() -> None:
    aux = torch.linspace(-4, 4, 17, dtype=torch.float64, requires_grad=True)
    surrogate_slope(aux, "softplus").sum().backward()
    torch.testing.assert_close(aux.grad, surrogate_slope(aux.detach(), "sigmoid"))
