"""The zoo: what it lists can be loaded and is what it says."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import autorep
from autorep import zoo
from autorep.errors import CheckpointError, ConfigError


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_loads_by_name_and_keeps_what_it_says(name):
    saved = zoo.load(name)
    entry = zoo.catalogue()[name]
    assert saved.replacement is not None
    assert saved.replacement.count() == entry["relus"]
    assert saved.replacement.total == entry["relus_total"]
    assert saved.replacement.frozen
    assert entry["result"]["test_accuracy"] > 50
    logits = saved.model(torch.zeros(2, *saved.input_shape))
    assert logits.shape == (2, saved.info["num_classes"])
    assert torch.isfinite(logits).all()


def test_an_unknown_name_is_refused():
    with pytest.raises(CheckpointError, match="neither a saved model nor in the zoo"):
        zoo.load("cifar10-resnet9000")


def test_calling_the_zoo_lists_it_with_private_accuracies():
    listed = autorep.zoo()  # type: ignore[operator]  # a module made callable, which mypy cannot see
    assert listed == zoo.catalogue()
    for entry in listed.values():
        private = entry["private"]
        assert private["images"] >= 500
        assert private["same_as_fixed"] >= private["images"] - private["ties"]
        assert private["accuracy"].keys() == {"float", "fixed", "private"}


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_has_its_program_beside_it_and_needs_no_data_for_it(name):
    saved = autorep.load(name)
    pictures = np.random.default_rng(1).integers(96, 160, (3, *saved.input_shape), np.uint8)
    answers = saved(pictures)
    assert saved.program.relu_count == saved.info["relus"]
    assert np.abs(saved.program.run(pictures / 255.0, "fixed") - answers.numpy()).max() < 0.05
    assert saved.program is saved.program


def test_a_loaded_model_takes_tensors_arrays_and_refuses_what_is_not_pixels(tmp_path):
    saved = autorep.load("cifar10-resnet20-relu3pct")
    levels = np.random.default_rng(0).integers(96, 160, (2, 3, 32, 32), np.uint8)
    mean, std = (torch.tensor(saved.info[key]).view(-1, 1, 1) for key in ("mean", "std"))
    expected = saved.model((torch.from_numpy(levels) / 255.0 - mean) / std)
    assert torch.allclose(saved(levels), expected, atol=1e-4)
    assert torch.allclose(saved(torch.from_numpy(levels) / 255.0), expected, atol=1e-4)
    Image.fromarray(levels[0].transpose(1, 2, 0)).save(tmp_path / "a.png")
    assert torch.allclose(saved(tmp_path / "a.png"), expected[:1], atol=1e-4)
    with pytest.raises(ConfigError, match="floats from 0 to 1"):
        saved((torch.from_numpy(levels) / 255.0 - mean) / std)
    assert repr(saved) == "<SavedModel ResNet-20 on CIFAR-10, 5,652 ReLUs kept>"


def test_stored_ranges_are_written_into_the_models_description(tmp_path):
    for suffix in (".json", ".safetensors"):
        shutil.copy(Path(zoo.__file__).parent / f"cifar10-resnet20-relu3pct{suffix}", tmp_path / f"model{suffix}")
    written = zoo.note(tmp_path, ranges={"images": 1})
    assert written == tmp_path / "model.json"
    assert autorep.load(tmp_path).info["ranges"] == {"images": 1}
