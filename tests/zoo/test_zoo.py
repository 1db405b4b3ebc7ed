"""The zoo: what it lists can be loaded and is what it says."""

import pytest
import torch

import autorep
from autorep import zoo
from autorep.errors import CheckpointError


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
