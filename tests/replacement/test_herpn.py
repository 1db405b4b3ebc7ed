"""HermiteNorm: training by batch statistics against a plain batch norm, and its fold to a quadratic."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from autorep.errors import ConfigError
from autorep.replacement import replace_activations_
from autorep.replacement.herpn import HermiteNorm

from .networks import Small


def site() -> HermiteNorm:
    torch.manual_seed(0)
    made = HermiteNorm((3, 4, 4))
    made.mask.zero_()
    with torch.no_grad():
        made.coefficients.copy_(torch.tensor([[1.5, 0.7, 2.0], [0.1, -0.3, 0.0]]))
    return made


def test_training_is_the_sum_of_two_batch_norms():
    made, z = site(), torch.randn(8, 3, 4, 4) * 2 + 0.5
    norms = [nn.BatchNorm2d(3, affine=False) for _ in range(2)]
    terms = norms[0](z) / 2 + norms[1]((z**2 - 1) / math.sqrt(2)) / math.sqrt(4 * math.pi)
    scale, shift = made.coefficients.detach().view(2, 3, 1, 1)
    expected = scale * (1 / math.sqrt(2 * math.pi) + terms) + shift
    torch.testing.assert_close(made.train()(z), expected, rtol=1e-4, atol=1e-5)


def test_the_fold_equals_the_evaluation_and_the_published_coefficient():
    made, z = site(), torch.randn(8, 3, 4, 4) * 2 + 0.5
    for _ in range(5):
        made.train()(z)
    a, b, c = (value.view(3, 1, 1) for value in made.poly_coefficients())
    z = z.double()
    torch.testing.assert_close(made.eval()(z.float()).double(), (a * z + b) * z + c, rtol=1e-4, atol=1e-4)
    scale, v2 = made.coefficients.detach()[0].double(), made.statistics[3].double()
    torch.testing.assert_close(a.flatten(), scale / torch.sqrt(8 * math.pi * v2), rtol=1e-4, atol=0)


def test_calibration_starts_near_the_relu():
    made = site()
    made.set_moments_(torch.tensor([0.0, 1.0, -1.0]), torch.tensor([1.0, 2.0, 1.0]))
    draw = torch.randn(4000, 3, 4, 4) * made.std.view(3, 1, 1) + made.mean.view(3, 1, 1)
    error = (made.eval()(draw) - draw.relu()).square().mean((0, 2, 3)).sqrt() / made.std
    assert error[0] < 0.15  # its own distribution: the Hermite series of the ReLU
    assert error.max() < 0.5


def test_a_replaced_model_carries_the_kind_of_its_polynomials():
    model, x = Small(), torch.randn(2, 1, 6, 6)
    handle = replace_activations_(model, x, 0, polynomial="herpn")
    assert all(isinstance(one, HermiteNorm) for one in handle.sites.values())
    again = replace_activations_(Small(), x, **handle.describe())
    assert again.settings == handle.settings
    with pytest.raises(ConfigError, match="herpn of degree 2"):
        replace_activations_(Small(), x, 0, polynomial="herpn", degree=1)
