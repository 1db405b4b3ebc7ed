"""One trained digits network for all tests that replace its activations."""

import pytest
import torch

from autorep.training import TrainSettings, train_baseline


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Small networks are fastest on one thread, and exactness needs a fixed number of them."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def baseline(tmp_path_factory):
    """Run directory and result of a digits baseline."""
    out = tmp_path_factory.mktemp("baseline") / "run"
    result = train_baseline(TrainSettings(epochs=15, out=out))
    return out, result
