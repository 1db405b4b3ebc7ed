"""The browser page in a real headless Chromium, against two real servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

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
