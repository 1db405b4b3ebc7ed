"""What users hold is taken: loaders, their batches, numpy arrays; what cannot be images is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autorep.errors import DataError
from autorep.replacement import Replacement, count_relus, replace_activations_
from tests.replacement.networks import Small

IMAGES = torch.randn(12, 1, 6, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 4


def loader() -> DataLoader:
    return DataLoader(TensorDataset(IMAGES, LABELS), batch_size=5)


EXAMPLES = {
    "tensor": IMAGES[:2],
    "array": IMAGES[:2].numpy(),
    "array of doubles": IMAGES[:2].numpy().astype(np.float64),
    "batch as a list": [IMAGES[:2], LABELS[:2]],
    "batch as a tuple": (IMAGES[:2].numpy(), LABELS[:2].numpy()),
    "loader": loader(),
}
CALIBRATIONS = {
    "tensor": IMAGES,
    "array": IMAGES.numpy().astype(np.float64),
    "list of tensors": [IMAGES[:4], IMAGES[4:]],
    "loader": loader(),
    "pairs of arrays": [(IMAGES[:7].numpy(), LABELS[:7].numpy()), (IMAGES[7:].numpy(), LABELS[7:].numpy())],
}
WRONG = {
    "a dictionary with 'pixel_values', 'labels'.*batch\\['pixel_values'\\]": {"pixel_values": IMAGES, "labels": LABELS},
    "images are uint8.*normalised": (IMAGES * 255).to(torch.uint8),
    "of type str": "images.png",
}


def replaced() -> tuple[Small, Replacement]:
    torch.manual_seed(0)
    model = Small().eval()
    return model, replace_activations_(model, IMAGES[:1])


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_examples_of_every_kind_find_the_same_sites(example: object) -> None:
    assert count_relus(Small(), example) == count_relus(Small(), IMAGES[:1])
    assert replace_activations_(Small(), example).table() == replaced()[1].table()


@pytest.mark.parametrize("batches", CALIBRATIONS.values(), ids=CALIBRATIONS)
def test_batches_of_every_kind_give_the_same_moments(batches: object) -> None:
    expected_model, expected = replaced()
    expected.calibrate_(expected_model, [IMAGES])
    model, found = replaced()
    found.calibrate_(model, batches)
    for name, site in found.sites.items():
        torch.testing.assert_close(site.mean, expected.sites[name].mean)
        torch.testing.assert_close(site.std, expected.sites[name].std)


@pytest.mark.parametrize(("said", "wrong"), WRONG.items(), ids=["dictionary", "levels", "text"])
def test_what_cannot_be_images_is_refused_by_name(said: str, wrong: object) -> None:
    model, replacement = replaced()
    with pytest.raises(DataError, match=said):
        replacement.calibrate_(model, [wrong])
    with pytest.raises(DataError, match=said):
        replace_activations_(Small(), wrong)


def test_an_example_without_a_batch_dimension_is_refused() -> None:
    with pytest.raises(DataError, match=r"shape \(1, 6, 6\); give a batch"):
        replace_activations_(Small(), IMAGES[0])


def test_no_batches_at_all_are_refused() -> None:
    model, replacement = replaced()
    with pytest.raises(DataError, match="at least one batch"):
        replacement.calibrate_(model, [])
