"""What a notebook shows: short lines, tables with every layer, and maps whose pixels are the masks."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import torch
from PIL import Image
from torch import nn

from autorep import compile_program, notebook, replace_activations_


class Checked(HTMLParser):
    """Every tag is closed in order; counts rows and pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = self.pictures = 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.pictures += 1
        else:
            self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def pixels(markup: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/png;base64,([^\"]+)", markup)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data in found]


def test_a_map_is_white_where_nothing_is_kept_and_blue_where_most_is() -> None:
    shares = np.array([[0.0, 0.25], [0.5, 0.125]])
    (picture,) = pixels(notebook.map_picture(shares))
    assert picture.shape == (2, 2, 3)
    assert picture[0, 0].tolist() == [255, 255, 255]
    assert picture[1, 0].tolist() == [0, 90, 143]
    assert picture[..., 0].ravel().tolist() == [255, 128, 0, 191]
    assert notebook.map_picture(np.array([0.5])) == ""
    assert pixels(notebook.map_picture(np.zeros((1, 1))))[0].tolist() == [[[255, 255, 255]]]


def test_tables_escape_names_and_say_how_much_is_left_out() -> None:
    text = notebook.table(("a",), [("<script>",)] * 201, "l")
    assert "<script>" not in text
    assert "and 1 more" in text
    assert Checked(text).rows == 201


def test_replacement_and_program_show_every_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5), nn.ReLU()).eval()
    images = torch.rand(16, 1, 8, 8)
    replacement = replace_activations_(model, images, budget=20)
    assert repr(replacement) == "<Replacement: 261 of 261 ReLUs kept in 2 layers, budget 20>"
    replacement.calibrate_(model, images)
    replacement.start_uniform_(torch.Generator().manual_seed(0))
    replacement.finalize_()
    assert repr(replacement) == "<Replacement: 20 of 261 ReLUs kept in 2 layers, final>"
    shown = Checked(replacement._repr_html_())
    assert (shown.rows, shown.pictures) == (3, 1)
    kept = replacement.sites["1"].mask.float().mean(0).numpy()
    (picture,) = pixels(replacement._repr_html_())
    assert ((picture[..., 0] == 255) == (kept == 0)).all()

    program = compile_program(model, images, name="small")
    assert re.fullmatch(
        r"<Program small: 1×8×8 to 5, \d+ operations, 20 ReLUs kept, 1,\d+ parameters>", repr(program)
    ), repr(program)
    shown = Checked(program._repr_html_())
    assert (shown.rows, shown.pictures) == (len(program.ops) + 1, 1)
    assert "no parameters" in repr(program.public())
