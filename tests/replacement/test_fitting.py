"""Polynomials fitted to samples: numpy's least squares, however images are cut up, and what a course starts with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autorep.replacement import CourseSettings, attach, fitting, replace_activations_
from autorep.replacement.activation import MaskedActivation


def network(seed: int) -> tuple[nn.Module, Tensor]:
    """A convolution with long tails behind it, and a ReLU."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    return model, torch.randn(24, 2, 6, 6) ** 3


def expected(z: Tensor) -> np.ndarray:
    """Powers of the nearest quadratic to the ReLU, channel by channel: (3, channels)."""
    columns = z.transpose(0, 1).flatten(1).double().numpy()
    return np.stack([np.polynomial.polynomial.polyfit(c, np.maximum(c, 0), 2) for c in columns], 1)


def first_site(model: nn.Module) -> MaskedActivation:
    return next(iter(attach(model).sites.values()))


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), cut=st.integers(1, 24), elements=st.sampled_from([1, 100, 1 << 22]))
def test_it_is_the_nearest_quadratic_whatever_batches_the_images_come_in(seed, cut, elements):
    model, images = network(seed)
    replacement = replace_activations_(model, images[:1])
    replacement.calibrate_(model, [images])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "ELEMENTS", elements)
        fitting.fit_polynomials_(model, replacement.sites, [(part, "label") for part in images.split(cut)])
    with torch.no_grad():
        wanted = expected(model[0](images))
    site = first_site(model)
    curved = wanted[2] * site.std.numpy() > 1e-2  # below, the small diagonal that keeps every system solvable shows
    np.testing.assert_allclose(site.power_coefficients().numpy()[:, curved], wanted[:, curved], rtol=0.03, atol=0.02)


def test_a_course_starts_with_a_share_of_the_fitted_curvature():
    curves = {}
    for share in (1.0, 0.5):
        model, images = network(0)
        replacement = replace_activations_(model, images[:1], budget=5)
        replacement.begin(model, [images], 10, settings=CourseSettings(curve=share))
        curves[share] = first_site(model).hermite().detach()
    torch.testing.assert_close(curves[0.5][2], 0.5 * curves[1.0][2], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(curves[0.5][:2], curves[1.0][:2])


def test_a_channel_whose_fit_would_be_concave_gets_the_nearest_line():
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU6())
    nn.init.ones_(model[0].weight)
    images = torch.linspace(2.0, 12.0, 400).view(100, 1, 2, 2)  # where ReLU6 bends down
    replacement = replace_activations_(model, images[:1])
    replacement.calibrate_(model, [images])
    fitting.fit_polynomials_(model, replacement.sites, [images])
    a, b, c = (float(v) for v in first_site(model).power_coefficients()[:, 0])
    wanted = np.polynomial.polynomial.polyfit(images.flatten().numpy(), images.clamp(0, 6).flatten().numpy(), 1)
    assert abs(c) < 1e-6
    np.testing.assert_allclose([a, b], wanted, atol=0.02)
