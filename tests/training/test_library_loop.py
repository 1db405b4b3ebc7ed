"""A loop of one's own with the replacement's three calls comes as far as the recipe, which makes the same calls."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from autorep import data, models
from autorep.data.augment import epoch_order, normalise, training_batch
from autorep.replacement import replace_activations_
from autorep.replacement.schedule import cosine
from autorep.replacement.softened import distillation
from autorep.training import ReplaceSettings, accuracy, load_model, replace
from autorep.training.shifts import measure


def own_loop(model: nn.Module, dataset: data.Dataset, budget: float, epochs: int, batch: int = 128) -> nn.Module:
    """What a library user writes: SGD, a teacher's answers, and begin, loss, step, finalize_."""
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    example = normalise(dataset.train.take(torch.arange(512)), dataset)
    replacement = replace_activations_(model, example[:1])
    replacement.budget = round(budget * replacement.total)
    each = len(dataset.train) // batch
    replacement.begin(model, example.split(128), epochs * each, teacher=teacher)
    optimizer = torch.optim.SGD(replacement.weights(), 0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    model.train()
    for step in range(epochs * each):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * cosine(step, epochs * each, 0.05)
        epoch, within = divmod(step, each)
        index = epoch_order(len(dataset.train), 0, epoch)[within * batch : (within + 1) * batch]
        x, y = training_batch(dataset, index, (0, step), slice(None))
        logits = model(x)
        loss = 0.1 * nn.functional.cross_entropy(logits, y) + 0.9 * distillation(logits, teacher(x), 4.0)
        (loss + replacement.loss()).backward()
        nn.utils.clip_grad_norm_(replacement.weights(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        replacement.step()
    replacement.finalize_()
    return model.eval()


def test_the_loop_on_digits_comes_as_far_as_the_recipe(baseline, tmp_path):
    settings = ReplaceSettings(weights=baseline[0] / "model.safetensors", budget=0.05, epochs=8, out=tmp_path / "run")
    recipe = replace(settings)["test_accuracy"]
    dataset = data.load("digits", None)
    model = own_loop(load_model(baseline[0]).model, dataset, budget=0.05, epochs=8)
    assert accuracy(model, dataset.test, dataset) >= recipe - 2


@pytest.mark.slow
@pytest.mark.skipif("AUTOREP_CIFAR10" not in os.environ, reason="set AUTOREP_CIFAR10 and AUTOREP_RESNET20 to two files")
def test_the_loop_on_cifar10_comes_as_far_as_the_recipe_and_loses_no_image(tmp_path):
    path, weights = Path(os.environ["AUTOREP_CIFAR10"]), Path(os.environ["AUTOREP_RESNET20"])
    epochs = int(os.environ.get("AUTOREP_EPOCHS", "3"))
    dataset = data.load("cifar10", path)
    settings = ReplaceSettings(
        model="resnet20",
        data="cifar10",
        data_path=path,
        weights=weights,
        budget=0.05,
        epochs=epochs,
        out=tmp_path / "run",
    )
    recipe = replace(settings)["test_accuracy"]
    model = models.create("resnet20", 10)
    models.load_weights_(model, weights)
    own_loop(model, dataset, budget=0.05, epochs=epochs)
    rows, _ = measure(model, None, dataset.test, dataset)
    assert rows[0]["accuracy"] >= recipe - 0.3
    assert rows[0]["lost"] == 0
