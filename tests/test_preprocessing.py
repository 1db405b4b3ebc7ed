"""A picture becomes the same pixels whatever way it comes in, and odd ones are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from autorep.errors import ConfigError, DataError
from autorep.preprocessing import Preprocessing, checked_pixels
from autorep.service.answers import Description

COLOUR = Preprocessing((3, 8, 8))
DRAWING = Preprocessing((1, 8, 8), "drawing")


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def triangle(length: int, start: float, stop: float, count: int) -> np.ndarray:
    """The scaling of one axis as a matrix, straight from its definition."""
    step = (stop - start) / count
    centres = start + (np.arange(count) + 0.5) * step
    distance = np.abs(np.arange(length)[None] + 0.5 - centres[:, None]) / max(step, 1.0)
    weights = np.maximum(0.0, 1.0 - distance)
    return weights / weights.sum(1, keepdims=True)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 12))
def test_scaling_is_the_triangle_filter_of_the_centre(height: int, width: int, extra: int) -> None:
    spec = Preprocessing((3, 8, 6), "picture", 8 + extra)
    image = picture(height, width)
    step = min(height, width) / spec.shorter
    top, left = (height - 8 * step) / 2, (width - 6 * step) / 2
    down, across = triangle(height, top, top + 8 * step, 8), triangle(width, left, left + 6 * step, 6)
    expected = np.einsum("ih,hwc,jw->cij", down, np.asarray(image, float), across)
    assert np.abs(spec.levels(image) - expected).max() <= 0.51


def test_a_picture_of_the_right_size_is_taken_as_it_is() -> None:
    image = picture(8, 8)
    assert np.array_equal(COLOUR.levels(image), np.asarray(image).transpose(2, 0, 1))


def test_dark_ink_on_paper_equals_light_ink_on_black_wherever_it_stands() -> None:
    ink = np.zeros((40, 60), np.uint8)
    ink[5:25, 10:16] = 255
    moved = np.roll(ink, (12, 30), (0, 1))
    expected = DRAWING.levels(Image.fromarray(ink))
    assert np.array_equal(DRAWING.levels(Image.fromarray(moved)), expected)
    assert np.array_equal(DRAWING.levels(Image.fromarray(255 - ink)), expected)
    assert expected[0, :, 3:5].min() > 200
    assert expected[0, :, :2].max() == 0


def test_a_blank_drawing_stays_blank() -> None:
    assert DRAWING.levels(Image.new("L", (30, 20), 255)).max() == 0


def test_file_pillow_image_and_array_agree(tmp_path: Path) -> None:
    image = picture(8, 8, seed=1)
    image.save(tmp_path / "a.png")
    array = np.asarray(image).transpose(2, 0, 1)
    batches = [COLOUR.batch(given) for given in (tmp_path / "a.png", [image], array, array / 255.0, array[None])]
    assert all(np.array_equal(batch, batches[0]) for batch in batches)


def test_turned_transparent_and_deep_pictures_are_read_rightly(tmp_path: Path) -> None:
    grey = Preprocessing((1, 8, 8))
    upright = picture(8, 8, seed=2)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by a quarter to see it upright
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(COLOUR.levels(tmp_path / "turned.png"), COLOUR.levels(upright))
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert COLOUR.levels(tmp_path / "clear.png").min() == 255
    levels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(levels.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    assert np.array_equal(grey.levels(tmp_path / "deep.png")[0], levels)


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.png").write_text("no picture")
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "float.tiff")
    picture(20, 20).save(tmp_path / "large.png")
    for name, reason in (("none.png", "no such file"), ("text.png", "cannot be read"), ("float.tiff", "8 or 16 bits")):
        with pytest.raises(DataError, match=reason) as caught:
            COLOUR.levels(tmp_path / name)
        assert name in str(caught.value)
    monkeypatch.setattr("autorep.preprocessing.LARGEST_PICTURE", 100)
    with pytest.raises(DataError, match="20×20 pixels"):
        COLOUR.levels(tmp_path / "large.png")


@pytest.mark.parametrize("kind", ["png", "jpeg", "tiff", "bmp", "ppm"])
def test_a_picture_that_is_cut_off_is_refused_as_a_file_and_as_an_image(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"cut.{kind}"
    picture(64, 64).save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be read as a picture"):
        COLOUR.levels(path)
    with pytest.raises(DataError, match="cannot be read as a picture"), Image.open(path) as opened:
        COLOUR.levels(opened)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 8, 8, 3), np.uint8), "channels first"),
        (np.zeros((2, 3, 8, 8), np.int64), "uint8 levels"),
        (np.full((2, 3, 8, 8), 7.0), "from 7 to 7"),
        (np.full((2, 3, 8, 8), np.nan), "NaN"),
        (np.zeros((2, 3, 9, 8)), "batches of"),
    ],
)
def test_arrays_that_would_be_guessed_at_are_refused(array: np.ndarray, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        checked_pixels(array, (3, 8, 8))


def test_the_specification_survives_a_manifest() -> None:
    spec = Preprocessing((3, 224, 224), "picture", 256)
    assert Preprocessing.of({"preprocessing": spec.facts()}, (3, 224, 224)) == spec
    assert Preprocessing.of({"normalize": [[0.5], [0.5]]}, (1, 8, 8)) == Preprocessing((1, 8, 8))
    assert Preprocessing.of({}, (1, 8, 8)) is None
    with pytest.raises(ConfigError, match="less than the cut"):
        Preprocessing((3, 32, 32), "picture", 20)


@pytest.mark.parametrize("given", ["cat.jpg", ["cat.jpg", "dog.jpg"], [Path("cat.jpg")]])
def test_a_path_where_only_numbers_are_known_is_refused_as_what_it_is(given) -> None:
    described = Description("", (3, 8, 8), 16, 44, 16, {})
    with pytest.raises(ConfigError, match=r"does not say how a picture becomes its input.*array \(N, 3, 8, 8\)"):
        described.pixels(given)
