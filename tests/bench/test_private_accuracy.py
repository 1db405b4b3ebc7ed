"""Private accuracy of a model against its fixed-point and float accuracy."""

from __future__ import annotations

import json

import torch

from autorep import data, models, zoo
from autorep.bench import private_accuracy as module
from autorep.bench.private_accuracy import private_accuracy
from autorep.cli.recorded import Zoo
from autorep.replacement import replace_activations_
from autorep.report import tables
from autorep.training import SavedModel, save_model


def small_model() -> tuple[SavedModel, data.Dataset]:
    """An untrained digits network with settled batch norms and most ReLUs replaced."""
    torch.manual_seed(0)
    dataset = data.load("digits")
    model = models.create("digits_net")
    images = data.normalise(dataset.train.take(torch.arange(256)), dataset)
    for _ in range(20):
        model.train()(images)
    replacement = replace_activations_(model.eval(), images[:1])
    replacement.calibrate_(model, [images])
    replacement.start_uniform_(torch.Generator().manual_seed(0))
    replacement.finalize_(replacement.total // 2)
    info = {
        "model": "digits_net",
        "num_classes": 10,
        "input_shape": list(dataset.shape),
        "data": "digits",
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }
    return SavedModel(model, replacement, info), dataset


def test_private_predictions_are_those_of_fixed_point_but_for_ties():
    saved, dataset = small_model()
    assert saved.replacement is not None
    result = private_accuracy(saved, dataset, count=30, batch=15, progress=False)
    assert (result["images"], result["relus"]) == (30, saved.replacement.count())
    assert result["holds"]
    assert result["same_as_fixed"] >= 30 - result["ties"]
    assert 0 < result["largest_difference"] <= result["rounding_error"]
    with torch.no_grad():
        logits = saved.model(data.normalise(dataset.test.take(torch.arange(30)), dataset))
    right = (logits.argmax(1) == dataset.test.labels[:30]).float().mean()
    assert abs(result["accuracy"]["float"] - 100 * float(right)) < 1e-3
    assert "30 of 30" in tables.zoo({"models": {"small": result | {"same_as_fixed": 30}}}).text()


def test_the_command_measures_a_saved_model(tmp_path, monkeypatch):
    saved, _ = small_model()
    save_model(tmp_path / "small", saved.model, saved.info)
    monkeypatch.setattr(module, "ERROR_RUNS", 2)
    command = Zoo(models=(str(tmp_path / "small.json"),), images=10, batch=10, json=str(tmp_path / "out.json"))
    assert command.run() == 0
    (result,) = json.loads((tmp_path / "out.json").read_text())["models"].values()
    assert result["images"] == 10
    assert zoo.load(tmp_path / "small.json").info["model"] == "digits_net"
