"""Correction without training: nearer to the all-ReLU network, and nothing moves where nothing is wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from autorep import models
from autorep.replacement import attach, replace_activations_
from autorep.replacement.correction import correct_
from autorep.replacement.fitting import fit_polynomials_


class Depthwise(nn.Module):
    """Every kind of layer that is corrected: with and without bias, batch norm, groups and stride."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.depthwise, self.norm2 = nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.point = nn.Conv2d(8, 16, 1)
        self.relu = nn.ReLU6()
        self.fc = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm1(self.stem(x)))
        x = self.relu(self.norm2(self.depthwise(x)))
        return self.fc(self.relu(self.point(x)).mean((2, 3)))


class Own(nn.Conv2d):
    """A subclass, which tracing goes into: its weight becomes an argument of a function."""


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network whose batch norms fit the images it is shown."""
    torch.manual_seed(0)
    model = Depthwise() if name == "depthwise" else models.create(name)
    coarse = torch.randn(160, 1, 3, 3)
    images = nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear")
    model.train()
    for _ in range(20):
        model(images)
    return model.eval(), images


@pytest.mark.parametrize("name", ["digits_net", "depthwise"])
@torch.no_grad()
def test_logits_come_nearer_to_the_all_relu_network_on_unseen_images(name):
    model, images = build(name)
    expected = model(images[128:])
    replacement = replace_activations_(model, images[:1])
    replacement.calibrate_(model, [images[:128]])
    replacement.start_uniform_(torch.Generator().manual_seed(1))
    replacement.finalize_(replacement.total // 5)
    masks = {key: site.mask.clone() for key, site in replacement.sites.items()}
    before = (model(images[128:]) - expected).square().mean()
    correct_(model, images[:128])
    after = (model(images[128:]) - expected).square().mean()
    assert after < 0.5 * before
    assert all(torch.equal(site.mask, masks[key]) for key, site in replacement.sites.items())


@torch.no_grad()
def test_a_network_that_keeps_every_activation_is_left_as_it_is():
    model, images = build("digits_net")
    replacement = replace_activations_(model, images[:1])
    replacement.calibrate_(model, [images])
    replacement.finalize_(replacement.total)
    state = copy.deepcopy(model.state_dict())
    correct_(model, images)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@torch.no_grad()
def test_a_convolution_of_a_subclass_is_corrected_also_with_as_many_images_as_channels():
    model, images = build("depthwise")
    own = Own(8, 8, 3, 2, 1, groups=8, bias=False)
    own.load_state_dict(model.depthwise.state_dict())
    twin = copy.deepcopy(model)
    model.depthwise = own
    for network in (model, twin):
        replacement = replace_activations_(network, images[:1])
        replacement.calibrate_(network, [images])
        replacement.finalize_(0)
        correct_(network, images[:8])
    assert not torch.equal(own.weight, build("depthwise")[0].depthwise.weight)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters()))


@pytest.mark.parametrize("fit", ["before masks", "correction"])
@torch.no_grad()
def test_a_polynomial_is_the_least_squares_fit_of_its_channel(fit):
    model, images = build("depthwise")
    replacement = replace_activations_(model, images[:1])
    replacement.calibrate_(model, [images])
    z = model.norm1(model.stem(images)).double()
    if fit == "correction":
        replacement.finalize_(0)
        correct_(model, images)
    else:
        fit_polynomials_(model, replacement.sites, images.split(40))
    first = next(iter(attach(model).sites.values()))
    # the stem's own inputs are right, so its weights did not move and z is what the first site reads
    for channel in range(8):
        values = z[:, channel].flatten()
        powers = torch.stack([values**k for k in range(3)], 1)
        fitted = torch.linalg.lstsq(powers, nn.functional.relu6(values)[:, None]).solution[:, 0]
        if fitted[2] > 1e-3:
            torch.testing.assert_close(first.power_coefficients()[:, channel], fitted, atol=5e-3, rtol=5e-3)
