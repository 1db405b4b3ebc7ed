"""One picture, one answer: by the command, from Python, in the browser, and by the torch network itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import autorep
from autorep import data, models
from autorep.cli.main import main
from autorep.compiler.compile import measure_ranges
from autorep.preprocessing import Preprocessing
from autorep.service.local import LocalDeployment
from autorep.training.compiled import SavedModel
from autorep.training.saved import load_model, save_model
from tests.cli.test_local import OWN

from .chromium import Chromium
from .test_page import ask, choose_file, needs_browser

ROUNDING = 0.01  # of a probability: fixed point, and a level that two decoders round differently


class Answer(NamedTuple):
    label: str
    probabilities: dict[str, float]


def finished(folder: Path, name: str, preprocessing: Preprocessing, classes: list[str]) -> SavedModel:
    """A network as `autorep train` leaves it, but for its weights, which are random and large."""
    torch.manual_seed(1)
    model = models.create(name, len(classes))
    for parameter in model.parameters():
        parameter.data *= 1.5
    channels = preprocessing.shape[0]
    info = {
        "model": name, "num_classes": len(classes), "input_shape": list(preprocessing.shape), "data": "folder",
        "classes": classes, "mean": [0.5] * channels, "std": [0.25] * channels, "preprocessing": preprocessing.facts(),
        "ranges": measure_ranges(model.eval(), torch.rand(64, *preprocessing.shape), ([0.5], [0.25])),
    }  # fmt: skip
    save_model(folder / "model", model, info)
    return load_model(folder / "model.json")


def digits(folder: Path) -> tuple[SavedModel, Image.Image]:
    """Dark ink on light paper, off its centre."""
    dataset = data.load("digits")
    paper = Image.new("L", (210, 160), 235)
    ImageDraw.Draw(paper).line([(120, 30), (180, 35), (150, 120)], fill=15, width=14)
    return finished(folder, "digits_net", dataset.preprocessing, list(dataset.classes)), paper


def cifar(folder: Path) -> tuple[SavedModel, Image.Image]:
    """A wide picture with little contrast, for a model of the zoo."""
    return autorep.load("cifar10-resnet20-relu3pct"), _photograph(90, 160)


def pictures(folder: Path) -> tuple[SavedModel, Image.Image]:
    """A model of one's own for an image folder, which scales to 8/7 of the cut."""
    (folder / "mynet.py").write_text(OWN)
    preprocessing = Preprocessing((3, 28, 28), "picture", 32)
    return finished(folder, f"{folder}/mynet.py:make", preprocessing, ["ant", "bee", "fly"]), _photograph(0, 256)


def _photograph(low: int, high: int) -> Image.Image:
    levels = np.random.default_rng(2).integers(low, high, (5, 8, 3), np.uint8)
    return Image.fromarray(levels).resize((173, 111), Image.Resampling.BICUBIC)


def by_torch(saved: SavedModel, path: Path) -> Answer:
    found = torch.softmax(saved(path)[0].double(), 0).tolist()
    named = dict(zip(saved.info["classes"], found))
    return Answer(max(named, key=named.__getitem__), named)


def by_command(deployment: LocalDeployment, path: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    capsys.readouterr()
    servers = ["--servers", *deployment.urls, "--ca", str(deployment.ca)]
    assert main(["predict", str(path), *servers, "--top", "3", "--json", "-"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["in_range"]
    return Answer(found["label"], {entry["label"]: entry["probability"] for entry in found["top"]})


def by_python(deployment: LocalDeployment, path: Path) -> Answer:
    with deployment.client() as client:
        (found,) = client.predict([path])
    return Answer(found.label, dict(found.top))


def by_browser(deployment: LocalDeployment, path: Path, browser: Chromium) -> Answer:
    browser.open(deployment.urls[0])
    browser.wait_for("!document.getElementById('ask').disabled")
    choose_file(browser, path)
    said = ask(browser)
    assert said.startswith("The answer: "), (said, browser.problems)
    bars = browser.evaluate("[...document.querySelectorAll('#bars li')].map(li => li.innerText.split('\\n'))")
    return Answer(bars[0][0], {name: float(value.split()[0]) / 100 for name, value in bars})


@needs_browser
@pytest.mark.parametrize("kind", [digits, cifar, pictures], ids=lambda kind: kind.__name__)
def test_one_picture_gives_one_answer_everywhere(
    kind, browser: Chromium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, picture = kind(tmp_path)
    path = tmp_path / "picture.png"
    picture.save(path)
    expected = by_torch(saved, path)
    with LocalDeployment(saved.program, prepare=3) as deployment:
        answers = [by_command(deployment, path, capsys), by_python(deployment, path)]
        answers.append(by_browser(deployment, path, browser))
    for label, probabilities in answers:
        assert label == expected.label
        assert len(probabilities) >= 3
        for name, probability in probabilities.items():
            assert abs(probability - expected.probabilities[name]) < ROUNDING
