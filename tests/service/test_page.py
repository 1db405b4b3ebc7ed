"""The browser page in a real headless Chromium, against two real servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.program.ir import Program
from autorep.service.local import LocalDeployment

from .chromium import Chromium, find_chromium

BINARY = find_chromium()
needs_browser = pytest.mark.skipif(BINARY is None, reason="no Chromium or Chrome is installed")
GREY = (
    "Array.from(document.getElementById('{}').getContext('2d').getImageData(0, 0, 8, 8).data)"
    ".filter((_, i) => i % 4 == 0)"
)


@pytest.fixture
def browser() -> Iterator[Chromium]:
    assert BINARY is not None
    with Chromium(BINARY, 1100, 1000) as running:
        yield running


def keep_screenshot(browser: Chromium, name: str) -> None:
    """Only where somebody asked for it, to look at."""
    if folder := os.environ.get("AUTOREP_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"{name}.png")


def ask(browser: Chromium) -> str:
    browser.click("#ask")
    browser.wait_for("!document.getElementById('ask').disabled")
    return browser.evaluate("document.getElementById('status').textContent")


@needs_browser
@pytest.mark.parametrize("server", [0, 1])
def test_drawing_is_classified_as_the_program_would(
    browser: Chromium, deployment: LocalDeployment, program: Program, server: int
) -> None:
    browser.open(deployment.urls[server])
    browser.wait_for("!document.getElementById('ask').disabled")
    x, y = browser.evaluate("(b => [b.x, b.y])(document.getElementById('board').getBoundingClientRect())")
    browser.drag([(x + 60, y + 50), (x + 200, y + 50), (x + 180, y + 120), (x + 120, y + 240), (x + 120, y + 240)])
    status = ask(browser)
    assert status.startswith("The answer: digit "), (status, browser.problems)
    image = np.array(browser.evaluate(GREY.format("view-own"))).reshape(1, 1, 8, 8) / 255
    assert 0.1 < image.mean() < 0.9
    logits = program.run(image, "float")[0]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    shown = browser.evaluate("[...document.querySelectorAll('#bars li')].map(li => li.innerText.split('\\n'))")
    for name, value in shown:
        assert abs(float(value.split()[0]) / 100 - probabilities[int(name.split()[1])]) < 0.02
    keep_screenshot(browser, f"desktop-{server}")


@needs_browser
def test_servers_see_noise_and_new_noise_each_time(browser: Chromium, deployment: LocalDeployment) -> None:
    browser.open(deployment.urls[0])
    browser.wait_for("!document.getElementById('ask').disabled")
    browser.evaluate("(e => { e.value = '7'; e.dispatchEvent(new Event('input')); })(document.getElementById('typed'))")
    seen = []
    for _ in range(2):
        assert ask(browser).startswith("The answer")
        seen += [browser.evaluate(GREY.format(f"view-{party}")) for party in (0, 1)]
    own = browser.evaluate(GREY.format("view-own"))
    for share in seen:
        assert len(set(share)) > 40
        assert share != own
    assert len({tuple(share) for share in seen}) == 4


@needs_browser
def test_asking_without_an_image_is_explained(browser: Chromium, deployment: LocalDeployment) -> None:
    browser.open(deployment.urls[0])
    browser.wait_for("!document.getElementById('ask').disabled")
    assert "first" in ask(browser)


@needs_browser
def test_picture_from_a_file_is_classified_in_colour(browser: Chromium, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)).eval()
    program = compile_program(model, torch.rand(32, 3, 32, 32), name="colour")
    colours = np.random.default_rng(6).integers(0, 256, (8, 8, 3), np.uint8)
    picture = np.kron(colours, np.ones((35, 35, 1), np.uint8))  # 280×280: the page need not scale it
    Image.fromarray(picture).save(tmp_path / "picture.png")
    with LocalDeployment(program, prepare=1) as deployment:
        browser.open(deployment.urls[0])
        browser.wait_for("!document.getElementById('ask').disabled")
        assert browser.evaluate("document.getElementById('type-row').hidden")
        root = browser.call("DOM.getDocument")["root"]["nodeId"]
        chooser = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        browser.call("DOM.setFileInputFiles", files=[str(tmp_path / "picture.png")], nodeId=chooser)
        browser.wait_for("document.getElementById('status').textContent.includes('is ready')")
        assert ask(browser).startswith("The answer: ")
        shown = browser.evaluate("[...document.querySelectorAll('#bars li')].map(li => li.innerText.split('\\n'))")
        keep_screenshot(browser, "colour")
    pixels = picture.transpose(2, 0, 1)[None] / 255
    small = np.stack([[_shrink(plane) for plane in pixels[0]]])
    logits = program.run(small, "float")[0]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    for name, value in shown:
        assert abs(float(value.split()[0]) / 100 - probabilities[int(name)]) < 0.005


def _shrink(plane: np.ndarray) -> np.ndarray:
    """Mean over the page's boxes, 280 to 32."""
    edges = np.floor(np.arange(33) * 280 / 32 + 0.5).astype(int)
    rows = np.stack([plane[a:b].mean(0) for a, b in zip(edges, edges[1:])])
    return np.stack([rows[:, a:b].mean(1) for a, b in zip(edges, edges[1:])], axis=1)


@needs_browser
def test_an_answer_out_of_range_names_no_class(browser: Chromium) -> None:
    torch.manual_seed(4)
    layers = [nn.Conv2d(1, 4, 3, 2, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10, bias=False)]
    program = compile_program(nn.Sequential(*layers).eval(), torch.rand(32, 1, 8, 8) / 50, name="dark")
    with LocalDeployment(program, prepare=1) as deployment:
        browser.open(deployment.urls[0])
        browser.wait_for("!document.getElementById('ask').disabled")
        browser.evaluate(
            "(e => { e.value = '8'; e.dispatchEvent(new Event('input')); })(document.getElementById('typed'))"
        )
        assert ask(browser).startswith("No answer")
        keep_screenshot(browser, "out-of-range")
    assert browser.evaluate("document.querySelectorAll('#bars li').length") == 0


@needs_browser
def test_page_fits_a_phone_and_names_its_controls(browser: Chromium, deployment: LocalDeployment) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    browser.open(deployment.urls[0])
    browser.wait_for("!document.getElementById('ask').disabled")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    unnamed = browser.evaluate(
        "[...document.querySelectorAll('input, select, button')]"
        ".filter(e => !(e.labels && e.labels.length) && !e.textContent.trim() && !e.ariaLabel).map(e => e.id)"
    )
    assert unnamed == []
    keep_screenshot(browser, "phone")
    assert browser.problems == []
