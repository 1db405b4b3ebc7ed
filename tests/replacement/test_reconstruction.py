"""Replacement without training: down to the budget, near the all-ReLU network, no image far, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from autorep import models
from autorep.errors import BudgetError, DataError
from autorep.replacement import attach, fit_without_training_, reconstruction, replace_activations_
from autorep.replacement.reach import reach


def network() -> tuple[torch.nn.Module, torch.Tensor]:
    """A small residual network whose batch norms fit the images it is shown."""
    torch.manual_seed(0)
    model = models.create("digits_net")
    images = F.interpolate(torch.randn(200, 1, 3, 3), size=(8, 8), mode="bilinear")
    model.train()
    for _ in range(20):
        model(images)
    return model.eval(), images


def test_reconstruction_brings_the_answers_nearer_than_least_squares_alone():
    errors = []
    for steps in (0, 120):
        model, images = network()
        with torch.no_grad():
            model.fc.weight.mul_(10)  # answers as decided as a trained network's
            expected = model(images[128:])
        replacement = replace_activations_(model, images[:1], budget=50)
        fit_without_training_(model, images[:128], steps=steps, rate=0.01)
        assert replacement.count() == 50
        assert replacement.frozen
        assert not model.training
        found = reach(model, attach(model).sites, [images[128:]])
        assert not found.far.any()
        errors.append(float((found.logits - expected).square().mean()))
    assert errors[1] < 0.7 * errors[0]


def test_images_of_a_step_are_moved_mirrored_and_mixed_in_equal_shares():
    draw = torch.Generator().manual_seed(0)
    x = torch.arange(16.0).view(16, 1, 1, 1) + torch.linspace(0, 0.5, 64).view(1, 1, 8, 8)
    seen = reconstruction.varied(x, draw)
    assert seen.shape == x.shape
    whose = seen.floor()  # every image has whole numbers of its own, blends have others
    blended, cut, alone = whose[:4], whose[4:8], whose[8:]
    assert all(len(image.unique()) == 1 for image in alone)
    assert torch.equal(alone[:, 0, 0, 0], torch.arange(8.0, 16.0))
    assert not torch.equal(seen[8:], x[8:])
    assert {len(image.unique()) for image in cut} == {2}
    assert all(4 <= int((image != 4 + i).sum()) <= 36 for i, image in enumerate(cut))
    assert sum(bool((image != i).any()) for i, image in enumerate(blended)) >= 3  # one may be nearly all its own
    assert torch.equal(reconstruction.varied(x, torch.Generator().manual_seed(0)), seen)


def test_it_leaves_no_hooks_and_no_limits_behind():
    model, images = network()
    replacement = replace_activations_(model, images[:1], budget=400)
    fit_without_training_(model, images[:64], steps=2)
    for site in replacement.sites.values():
        assert not site._forward_hooks
        assert site.range_limit is None
        assert site.input_limit == torch.inf
    assert not model._forward_pre_hooks


def test_large_images_are_ranked_by_a_few_at_a_time(monkeypatch):
    model, images = network()
    replace_activations_(model, images[:1], budget=300)
    monkeypatch.setattr(reconstruction, "RANKING_PIXELS", 10 * images[0, 0].numel())
    counts = []
    hook = model.register_forward_pre_hook(lambda module, args: counts.append(len(args[0])))
    fit_without_training_(model, images[:25], steps=0)
    hook.remove()
    assert set(counts) == {10, 5}


def test_a_model_on_its_way_and_empty_images_are_refused():
    model, images = network()
    replacement = replace_activations_(model, images[:1])
    with pytest.raises(BudgetError, match="no budget"):
        fit_without_training_(model, images)
    replacement.budget = 100
    with pytest.raises(DataError, match="at least one image"):
        fit_without_training_(model, images[:0])
    replacement.settle_(100)
    with pytest.raises(BudgetError, match="replaced already"):
        fit_without_training_(model, images)
