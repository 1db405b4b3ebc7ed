"""The browser page in a real headless Chromium, against two real servers."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from autorep import data, models
from autorep.compiler.compile import compile_program
from autorep.modes import Program
from autorep.preprocessing import Preprocessing, picture_address
from autorep.program.answer import AnswerName, answering
from autorep.service.local import LocalDeployment

from .chromium import Chromium, find_chromium

needs_browser = pytest.mark.skipif(find_chromium() is None, reason="no Chromium or Chrome is installed")
GREY = (
    "Array.from(document.getElementById('{}').getContext('2d').getImageData(0, 0, 8, 8).data)"
    ".filter((_, i) => i % 4 == 0)"
)


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
        unseen = "['type-row', 'samples', 'preview-row'].every(id => !document.getElementById(id).checkVisibility())"
        assert browser.evaluate(unseen)
        assert browser.evaluate("document.getElementById('stage').innerText") == "Drop a picture here"
        choose_file(browser, tmp_path / "picture.png")
        assert browser.evaluate("document.getElementById('preview-row').checkVisibility()")
        assert browser.evaluate("document.getElementById('stage').innerText") == ""
        assert ask(browser).startswith("The answer: ")
        shown = browser.evaluate("[...document.querySelectorAll('#bars li')].map(li => li.innerText.split('\\n'))")
        keep_screenshot(browser, "colour")
    logits = program.run(Preprocessing((3, 32, 32)).batch(tmp_path / "picture.png"), "float")[0]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    for name, value in shown:
        assert abs(float(value.split()[0]) / 100 - probabilities[int(name)]) < 0.005


def choose_file(browser: Chromium, path: Path) -> None:
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    chooser = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", files=[str(path)], nodeId=chooser)
    browser.wait_for(f"document.getElementById('status').textContent.includes('{path.name} is ready')")


DROPPED = """
(() => {{
  const given = new DataTransfer();
  const body = Uint8Array.from(atob("{address}".split(",")[1]), (letter) => letter.charCodeAt(0));
  given.items.add(new File([body], "{name}", {{ type: "image/png" }}));
  document.body.dispatchEvent(new {event}, {{ bubbles: true, cancelable: true, {where}: given }}));
}})()
"""


@needs_browser
@pytest.mark.parametrize(
    ("event", "where"), [("DragEvent('drop'", "dataTransfer"), ("ClipboardEvent('paste'", "clipboardData")]
)
def test_a_picture_can_be_dropped_and_pasted(
    browser: Chromium, deployment: LocalDeployment, event: str, where: str
) -> None:
    browser.open(deployment.urls[0])
    browser.wait_for("!document.getElementById('ask').disabled")
    levels = np.random.default_rng(4).integers(0, 256, (1, 20, 20), np.uint8)
    browser.evaluate(DROPPED.format(address=picture_address(levels), name="mine.png", event=event, where=where))
    browser.wait_for("document.getElementById('status').textContent.includes('mine.png is ready')")
    assert browser.evaluate("document.getElementById('preview-row').checkVisibility()")


def type_character(browser: Chromium, character: str) -> None:
    browser.evaluate(
        f"(e => {{ e.value = '{character}'; e.dispatchEvent(new Event('input')); }})(document.getElementById('typed'))"
    )


def odd_pictures(folder: Path) -> list[Path]:
    """A wide photograph, a turned one, ink on paper and ink on nothing."""
    smooth = np.random.default_rng(5).integers(0, 256, (9, 14, 3), np.uint8)
    photograph = Image.fromarray(smooth).resize((431, 277), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 8
    ink = Image.new("RGBA", (200, 120), (0, 0, 0, 0))
    ink.paste((20, 20, 60, 255), (60, 15, 85, 100))
    paper = Image.new("L", (150, 90), 250)
    paper.paste(10, (100, 20, 112, 80))
    files = [folder / name for name in ("photograph.png", "turned.jpg", "ink.png", "paper.png")]
    photograph.save(files[0])
    photograph.save(files[1], exif=exif, quality=95)
    ink.save(files[2])
    paper.save(files[3])
    return files


@needs_browser
def test_browser_and_python_make_the_same_pixels_of_a_picture(
    browser: Chromium, deployment: LocalDeployment, tmp_path: Path
) -> None:
    browser.open(deployment.urls[0])
    specifications = [
        Preprocessing((3, 32, 32)),
        Preprocessing((3, 48, 40), "picture", 56),
        Preprocessing((1, 8, 8), "drawing"),
    ]
    for path in odd_pictures(tmp_path):
        kind = "jpeg" if path.suffix == ".jpg" else "png"
        address = f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        for spec in specifications:
            found = browser.evaluate(
                "(async () => { const { levels } = await import('/pixels.js');"
                f" const image = new Image(); image.src = '{address}'; await image.decode();"
                f" return Array.from(levels(await createImageBitmap(image), {json.dumps(spec.facts())})); }})()"
            )
            difference = np.abs(np.array(found).reshape(spec.shape) - spec.levels(path).astype(int))
            limit = 3 if kind == "jpeg" else 1  # JPEG decoders may differ in the last bits
            assert difference.max() <= limit, (path.name, spec, difference.max())


@needs_browser
def test_a_new_picture_takes_the_old_answer_away(
    browser: Chromium, deployment: LocalDeployment, tmp_path: Path
) -> None:
    browser.open(deployment.urls[0])
    browser.wait_for("!document.getElementById('ask').disabled")
    type_character(browser, "7")
    assert ask(browser).startswith("The answer")
    assert browser.evaluate("document.querySelectorAll('#bars li').length") > 0
    choose_file(browser, odd_pictures(tmp_path)[0])
    assert browser.evaluate("document.querySelectorAll('#bars li').length") == 0
    assert browser.evaluate("document.getElementById('facts').hidden && document.getElementById('seen').hidden")
    assert not browser.evaluate("document.getElementById('preview-row').hidden")
    keep_screenshot(browser, "before-asking")


@needs_browser
def test_digits_typed_drawn_and_clicked_are_recognised(browser: Chromium) -> None:
    """The embedded digits' own network: name, classes and samples are shown, a typed 7 is a 7."""
    dataset = data.load("digits")
    torch.manual_seed(0)
    model = models.create("digits_net")
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(260):
        index = torch.randint(len(dataset.train), (64,))
        x, y = data.training_batch(dataset, index, (0, step), slice(None))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    images = dataset.train.take(torch.arange(256)).numpy() / 255.0
    samples = [picture_address(levels) for levels in dataset.test.take(torch.arange(4)).numpy()]
    program = compile_program(
        model.eval(), images, name="Handwritten digits", class_names=dataset.classes,
        normalize=(dataset.mean, dataset.std),
        info={"preprocessing": dataset.preprocessing.facts(), "samples": samples},
    )  # fmt: skip
    with LocalDeployment(program, prepare=3) as deployment:
        browser.open(deployment.urls[0])
        browser.wait_for("!document.getElementById('ask').disabled")
        assert "Handwritten digits" in browser.evaluate("document.body.innerText")
        assert "10 classes" in browser.evaluate("document.getElementById('model-classes').textContent")
        type_character(browser, "7")
        assert ask(browser).startswith("The answer: 7,")
        keep_screenshot(browser, "digits")
        browser.click("#samples button:nth-child(3)")
        browser.wait_for("document.getElementById('status').textContent.includes('Sample 3 is ready')")
        own = np.array(browser.evaluate(GREY.format("preview"))).reshape(8, 8)
        ask(browser)
        sent = np.array(browser.evaluate(GREY.format("view-own"))).reshape(8, 8)
    assert np.array_equal(own, sent)
    sample = Image.fromarray(dataset.test.take(torch.tensor([2]))[0, 0].numpy())
    assert np.array_equal(sent, dataset.preprocessing.levels(sample)[0])


@needs_browser
def test_a_missing_token_opens_its_box(browser: Chromium, deployment: LocalDeployment) -> None:
    browser.open(deployment.urls[0])
    browser.wait_for("!document.getElementById('ask').disabled")
    browser.evaluate("window.fetch = async () => new Response('{}', { status: 401 })")  # as servers with tokens do
    type_character(browser, "7")
    assert "paste your access token" in ask(browser)
    assert browser.evaluate("document.getElementById('token-box').open")


@needs_browser
def test_a_picture_out_of_range_is_refused_and_names_no_class(browser: Chromium) -> None:
    torch.manual_seed(4)
    layers = [nn.Conv2d(1, 4, 3, 2, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10, bias=False)]
    program = compile_program(nn.Sequential(*layers).eval(), torch.rand(32, 1, 8, 8) / 50, name="dark")
    with LocalDeployment(program, prepare=1) as deployment:
        browser.open(deployment.urls[0])
        browser.wait_for("!document.getElementById('ask').disabled")
        browser.evaluate(
            "(e => { e.value = '8'; e.dispatchEvent(new Event('input')); })(document.getElementById('typed'))"
        )
        assert ask(browser).startswith("This program was made for values from")
        keep_screenshot(browser, "out-of-range")
    assert browser.evaluate("document.querySelectorAll('#bars li').length") == 0


@needs_browser
@pytest.mark.parametrize("gives", ["logits", "class"])
def test_an_answer_out_of_range_names_no_class(browser: Chromium, gives: AnswerName) -> None:
    """The servers of a page that does not look at the input range."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(1, 4, 3, 2, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10, bias=False)]
    program = compile_program(nn.Sequential(*layers).eval(), torch.rand(32, 1, 8, 8) / 50, name="dark")
    wide = dataclasses.replace(program, info={**program.info, "input_range": [-9, 9]})
    with LocalDeployment(answering(wide, gives), prepare=1) as deployment:
        browser.open(deployment.urls[0])
        browser.wait_for("!document.getElementById('ask').disabled")
        type_character(browser, "8")
        assert ask(browser).startswith("No answer: this image is too far")
    assert browser.evaluate("document.querySelectorAll('#bars li').length") == 0


@needs_browser
def test_a_class_alone_is_shown_without_a_probability(browser: Chromium, program: Program) -> None:
    with LocalDeployment(answering(program, "top-5"), prepare=1) as deployment:
        browser.open(deployment.urls[0])
        browser.wait_for("!document.getElementById('ask').disabled")
        type_character(browser, "7")
        status = ask(browser)
        image = np.array(browser.evaluate(GREY.format("view-own"))).reshape(1, 1, 8, 8) / 255
        shown = browser.evaluate("[...document.querySelectorAll('#bars li')].map(li => li.innerText.trim())")
    best = np.argsort(-program.run(image, "float")[0])[:5]
    assert shown == [f"digit {i}" for i in best]
    assert status == f"The answer: digit {best[0]}."


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
