"""The worked examples run as written and come out the same in all three modes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autorep import models

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["vgg_private", "mobilenet_private"])
def test_example_runs_privately_with_the_answers_of_float(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    rows = importlib.import_module(name).main(epochs=3, images=40)
    for module in (name, "digits_task"):
        sys.modules.pop(module, None)
    assert rows["float"]["accuracy"] >= 80
    for mode in ("fixed", "secure"):
        assert rows[mode]["same"] >= 97.5
        assert 0 < rows[mode]["difference"] < 0.1
    assert "ReLU" in capsys.readouterr().out


def test_photos_go_through_a_network_replaced_without_training(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    torch.manual_seed(0)
    torch.save(models.create("efficientnet_lite0", image_size=32).state_dict(), tmp_path / "weights.pth")
    colours = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    photos = [tmp_path / f"{number}.png" for number in range(2)]
    for path, blocks in zip(photos, colours):
        Image.fromarray(blocks.repeat(8, 0).repeat(8, 1)).save(path)
    example = importlib.import_module("imagenet_private")
    logits = example.main(photos, tmp_path, weights=tmp_path / "weights.pth", size=32, views=8)
    sys.modules.pop("imagenet_private")
    assert "62,832 of 125,664 ReLU6 activations kept" in capsys.readouterr().out
    for mode in ("original", "float", "fixed", "secure"):
        assert logits[mode].shape == (2, 1000)
        assert np.abs(logits[mode] - logits["original"]).max() < 1e-3  # as drawn, weights pass little on


def test_photos_of_a_tree_are_counted_by_class_and_answers_that_are_not_finite_apart(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    for name, grey in (("b", 250), ("a", 5), ("c", 100)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((40, 40, 3), grey, np.uint8)).save(tmp_path / name / "photo.png")

    def network(images: torch.Tensor) -> torch.Tensor:  # dark is class 0, bright 1 and far beyond, all else 0
        mean = images.mean((1, 2, 3))
        bright = torch.where(mean > 0.9, torch.inf, mean)
        return torch.stack([-bright, bright, torch.full_like(mean, -9)], 1)

    example = importlib.import_module("imagenet_private")
    found = example.measure(network, tmp_path, 32)
    assert found == "1 of 3 photos right (33.3 %), 1 without a finite answer"
    assert len(example.some_views(example.photos_in(tmp_path), 32, 2)) == 2
    assert len(example.some_views(example.photos_in(tmp_path), 32, 5)) == 5
    sys.modules.pop("imagenet_private")
