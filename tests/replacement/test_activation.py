import copy

import pytest
import torch
from torch import Tensor

from autorep.errors import DataError, UnsupportedOpError
from autorep.replacement import MaskedActivation
from autorep.replacement.dapa import dapa

SHAPES = [(3, 4, 4), (7,), (3, 5)]


def site_of(shape: tuple[int, ...], **options) -> MaskedActivation:
    """A site with uneven moments and a mixed mask."""
    generator = torch.Generator().manual_seed(7)
    site = MaskedActivation(shape, **options)
    polynomials = site.mean.numel()
    site.set_moments_(torch.randn(polynomials, generator=generator), 0.3 + torch.rand(polynomials, generator=generator))
    site.mask.copy_(torch.randint(0, 2, shape, generator=generator))
    return site


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ["relu", "relu6", "silu"])
@pytest.mark.parametrize("granularity", ["channel", "layer"])
def test_kept_elements_are_activated_and_others_take_the_polynomial(shape, activation, granularity) -> None:
    site = site_of(shape, activation=activation, granularity=granularity)
    z = 3 * torch.randn(5, *shape)
    x = site(z)
    a, b, c = (value.reshape(-1, *(1,) * (len(shape) - 1)) for value in site.poly_coefficients())
    quadratic = a * z.double() ** 2 + b * z.double() + c
    kept = {"relu": torch.relu, "relu6": torch.nn.functional.relu6, "silu": torch.nn.functional.silu}[activation](z)
    want = torch.where(site.mask.bool(), kept.double(), quadratic)
    torch.testing.assert_close(x.double(), want, rtol=1e-4, atol=1e-4)
    assert a.numel() == shape[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_input_and_coefficient_gradients_by_finite_differences(shape, degree) -> None:
    site = site_of(shape, degree=degree).double()
    z = (2 * torch.randn(2, *shape, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, _: site(z), (z, site.coefficients))


@pytest.mark.parametrize("surrogate", ["softplus", "sigmoid"])
def test_aux_gradient_is_the_straight_through_formula(surrogate) -> None:
    site = site_of((3, 4, 4), surrogate=surrogate).double()
    with torch.no_grad():
        site.aux.normal_()
    z, weight = torch.randn(6, 3, 4, 4, dtype=torch.float64), torch.randn(6, 3, 4, 4, dtype=torch.float64)
    (site(z) * weight).sum().backward()
    slope = torch.nn.functional.softplus(site.aux) if surrogate == "softplus" else torch.sigmoid(site.aux)
    want = (weight * (torch.relu(z) - site.poly(z))).sum(0) * slope
    torch.testing.assert_close(site.aux.grad, want.detach())


def test_evaluation_and_training_forwards_change_no_state() -> None:
    site = site_of((3, 4, 4))
    before = copy.deepcopy(site.state_dict())
    for training in (False, True):
        site.train(training)
        site(torch.randn(4, 3, 4, 4))
    assert all(torch.equal(value, site.state_dict()[name]) for name, value in before.items())


def test_the_curve_stays_positive_whatever_training_does() -> None:
    site = site_of((3, 4, 4))
    with torch.no_grad():
        site.coefficients.fill_(-5.0)
    assert (site.poly_coefficients()[0] > 0).all()


def test_moments_give_dapa_and_a_dead_channel_stays_finite() -> None:
    site = MaskedActivation((4, 2, 2))
    site.mask.zero_()
    mean, std = torch.tensor([0.5, -1.0, 0.0, 3.0]), torch.tensor([1.0, 2.0, 0.0, 0.0])
    site.set_moments_(mean, std)
    want = dapa(mean[:2], std[:2], 2).float()
    torch.testing.assert_close(site.hermite()[:, :2].detach(), want)
    z = mean.reshape(4, 1, 1).expand(2, 4, 2, 2)
    x = site(z)
    assert torch.isfinite(x).all()
    torch.testing.assert_close(x[:, 2:], torch.relu(z[:, 2:]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("granularity", ["channel", "layer"])
def test_running_moments_follow_only_training_forwards_while_tracking(granularity) -> None:
    site = MaskedActivation((2, 3, 3), granularity=granularity)
    z = torch.tensor([2.0, -1.0]).reshape(1, 2, 1, 1) + torch.randn(400, 2, 3, 3) * torch.tensor([0.5, 3.0]).reshape(
        2, 1, 1
    )
    site.train()(z)
    site.tracking = True
    site.eval()(z)
    assert int(site.moment_steps) == 0
    for part in site.train() and z.chunk(4):
        site(part)
    variance, mean = torch.var_mean(z, dim=(0, 2, 3) if granularity == "channel" else (0, 1, 2, 3), correction=0)
    torch.testing.assert_close(site.moments[0], mean.reshape(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(site.moments[1], variance.reshape(-1), atol=0.1, rtol=0.02)


def test_another_input_size_is_refused_naming_both() -> None:
    with pytest.raises(DataError, match=r"\(3, 5, 5\).*\(3, 4, 4\)"):
        MaskedActivation((3, 4, 4))(torch.zeros(1, 3, 5, 5))


def test_kept_index_lists_the_kept_elements() -> None:
    site = site_of((3, 4, 4))
    assert site.kept_index().tolist() == [i for i, m in enumerate(site.mask.reshape(-1).tolist()) if m]


def test_degree_three_has_no_quadratic_form() -> None:
    with pytest.raises(UnsupportedOpError, match="degree 3"):
        site_of((3,), degree=3).poly_coefficients()


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_power_coefficients_are_the_polynomial_of_forward(degree) -> None:
    site = site_of((5,), degree=degree)
    site.mask.zero_()
    z = torch.linspace(-2, 2, 11).reshape(-1, 1).expand(-1, 5)
    powers = site.power_coefficients()
    want: Tensor = sum(powers[i] * z.double() ** i for i in range(degree + 1))  # type: ignore[assignment]
    torch.testing.assert_close(site(z).double(), want, rtol=1e-4, atol=1e-4)


def test_range_penalty_is_collected_and_does_not_hinder_a_copy() -> None:
    site = site_of((3, 4, 4))
    site.range_limit = 1.0
    z = (3 * torch.randn(4, 3, 4, 4)).requires_grad_()
    site.train()(z)
    assert site.range_sum is not None
    distance = ((z - site.mean.reshape(3, 1, 1)) / site.std.reshape(3, 1, 1)).abs()
    want = ((1 - site.mask.float()) * torch.relu(distance - 1) ** 2).sum((1, 2, 3))
    torch.testing.assert_close(site.range_sum, want)
    assert copy.deepcopy(site).range_sum is None


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_slopes_are_limited_in_training_and_values_are_not(degree) -> None:
    site = site_of((3, 4, 4), degree=degree)
    z = (3 * torch.randn(5, 3, 4, 4)).requires_grad_()
    true_value = site.eval()(z)
    (true,) = torch.autograd.grad(true_value.sum(), z)
    site.slope_limit = 0.3
    value = site.train()(z)
    (slope,) = torch.autograd.grad(value.sum(), z)
    torch.testing.assert_close(value, true_value, rtol=1e-4, atol=1e-5)
    want = torch.where(site.mask.bool(), true, true.clamp(-0.3, 0.3))
    torch.testing.assert_close(slope, want, rtol=1e-4, atol=1e-5)
    assert not torch.equal(want, true)
