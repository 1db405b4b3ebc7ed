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
    for steps in (0, 40):
        model, images = network()
        with torch.no_grad():
            expected = model(images[128:])
        replacement = replace_activations_(model, images[:1], budget=200)
        statistics = model.bn1.running_mean.clone()
        fit_without_training_(model, images[:128], steps=steps)
        assert replacement.count() == 200
        assert replacement.frozen
        assert not model.training
        if steps:
            assert not torch.equal(model.conv1.weight, network()[0].conv1.weight)
        assert steps == 0 or torch.allclose(model.bn1.running_mean, statistics, atol=1.0)
        found = reach(model, attach(model).sites, [images[128:]])
        assert not found.far.any()
        errors.append(float((found.logits - expected).square().mean()))
    assert errors[1] < errors[0]


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
    fit_without_training_(model, images[:25])
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
