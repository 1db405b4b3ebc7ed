"""Reach: the largest input of each image at each site, found here by an obvious loop, and which images go far."""

from __future__ import annotations

import math

import torch

from autorep.replacement import replace_activations_
from autorep.replacement.reach import LIMIT, reach
from tests.replacement.networks import Small


@torch.no_grad()
def test_the_largest_input_of_every_image_is_found_at_replaced_positions_only():
    torch.manual_seed(0)
    model, images = Small().eval(), torch.randn(9, 1, 6, 6)
    replacement = replace_activations_(model, images[:1], budget=100)
    replacement.calibrate_(model, [images])
    replacement.start_uniform_(torch.Generator().manual_seed(0))
    replacement.settle_(100)
    found = reach(model, replacement.sites, images.split(4))
    inputs: dict[str, torch.Tensor] = {}
    for name, site in replacement.sites.items():
        site.register_forward_pre_hook(lambda module, args, name=name: inputs.update({name: args[0]}))
    torch.testing.assert_close(found.logits, model(images))
    for column, (name, site) in enumerate(replacement.sites.items()):
        for image, z in enumerate(inputs[name]):
            deviations = [
                abs(float(value - site.mean[place[0]]) / float(site.std[place[0]]))
                for place, value in zip(
                    torch.cartesian_prod(*map(torch.arange, z.shape)).reshape(-1, z.dim()), z.flatten()
                )
                if not site.mask[tuple(place)]
            ]
            assert math.isclose(float(found.largest[image, column]), max(deviations, default=0.0), rel_tol=1e-4)
    assert not found.far.any()
    assert all(tail == sorted(tail) for tail in found.tails().values())


@torch.no_grad()
def test_images_beyond_the_limit_or_without_a_finite_answer_go_far():
    torch.manual_seed(0)
    model, images = Small().eval(), torch.randn(6, 1, 6, 6)
    replacement = replace_activations_(model, images[:1], budget=0)
    replacement.calibrate_(model, [images])
    replacement.settle_(0)
    images[2] *= 3 * LIMIT
    images[4] = math.nan
    found = reach(model, replacement.sites, [images])
    assert found.far.tolist() == [False, False, True, False, True, False]
    assert found.largest[4].isinf().all()


@torch.no_grad()
def test_a_kept_activation_may_see_anything_finite():
    torch.manual_seed(0)
    model, images = Small().eval(), torch.randn(6, 1, 6, 6)
    replacement = replace_activations_(model, images[:1])
    replacement.calibrate_(model, [images])
    assert not reach(model, replacement.sites, [1e3 * images]).far.any()
