"""The settings files: every one is valid, asks for a feasible budget, and is named for what it runs."""

from pathlib import Path

import pytest

from autorep import data, models
from autorep.settings import from_mapping, read_toml
from autorep.training import ReplaceSettings, TrainSettings

FILES = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
TOTALS = {
    ("resnet18", "cifar10"): 491_520,
    ("resnet18", "cifar100"): 491_520,
    ("resnet18", "tiny-imagenet"): 1_966_080,
    ("wide_resnet22_8", "cifar100"): 1_359_872,
    ("wide_resnet22_8", "tiny-imagenet"): 5_439_488,
    ("efficientnet_b2", "imagenet"): 8_804_162,
    ("resnet20", "cifar10"): 188_416,
    ("resnet20", "cifar100"): 188_416,
    ("resnet32", "cifar10"): 303_104,
    ("resnet32", "cifar100"): 303_104,
    ("digits_net", "digits"): 4_096,
}


def test_there_are_files():
    assert len(FILES) >= 17


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_valid_and_feasible(path):
    if path.stem.startswith("baseline-"):
        settings = from_mapping(TrainSettings, read_toml(path), str(path))
    else:
        settings = from_mapping(ReplaceSettings, read_toml(path), str(path))
        assert 0 < settings.budget < TOTALS[settings.model, settings.data]
    assert settings.model in models.names()
    assert settings.data in data.names()
    assert settings.model in path.stem
    assert settings.data in path.stem
    assert path.read_text().startswith("#")
