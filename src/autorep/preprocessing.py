"""From a picture as people have it to the pixels a network takes: one specification that travels with the model.

Training, evaluation, the command line, the Python client and the browser page (`service/page/pixels.js`) all follow the
same steps, so that one picture gives one answer everywhere:

1. upright as its camera meant it (EXIF), transparent parts over white, 8 bits a colour, grey or RGB;
2. *picture*: the shorter edge is scaled to `shorter`, the centre is cut out. *drawing*: dark ink on light paper is
   inverted, a square is laid around the ink, and that square is scaled;
3. scaling by a triangle filter as wide as the step (what Pillow calls BILINEAR), then rounded to 8 bits;
4. the network's input is level / 255, channels first. Mean and deviation are folded into the program.

Arrays skip steps 1 to 3: uint8 levels, or floats that lie in [0, 1] already; anything else is refused.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autorep.errors import ConfigError, DataError

LARGEST_PICTURE = 100_000_000
"""Pixels of the largest picture that is decoded; a small file can claim to hold far more."""
INK = 40
"""Level from which a pixel of a drawing counts as ink."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes a network's input.

    Attributes:
        shape: (channels, height, width) of the input; 1 channel is grey, 3 are RGB.
        kind: a photographed picture, or a drawing whose ink is centred and scaled.
        shorter: length of a picture's shorter edge before the centre is cut out.
    """

    shape: tuple[int, int, int]
    kind: Literal["picture", "drawing"] = "picture"
    shorter: int = 0

    def __post_init__(self) -> None:
        channels, height, width = self.shape
        if channels not in (1, 3) or height < 1 or width < 1:
            raise ConfigError(f"preprocessing: shape {self.shape}; pictures become (1 or 3, height, width)")
        if self.kind not in ("picture", "drawing"):
            raise ConfigError(f"preprocessing: kind {self.kind!r}; valid: picture, drawing")
        if self.shorter == 0:
            object.__setattr__(self, "shorter", max(height, width))
        if self.shorter < max(height, width):
            raise ConfigError(f"preprocessing: shorter = {self.shorter} is less than the cut of {height}×{width}")

    @classmethod
    def of(cls, info: Mapping[str, Any], shape: Sequence[int]) -> Preprocessing | None:
        """The specification in a model's or program's facts; a plain picture where they only say that pixels come in.

        None where the owner says nothing of pictures: then the input is numbers, and only arrays will do.
        """
        found = info.get("preprocessing")
        if found is not None:
            return cls(**{**found, "shape": tuple(found["shape"])})
        takes_pixels = info.get("normalize") is not None or info.get("mean") is not None
        if not takes_pixels or len(shape) != 3 or shape[0] not in (1, 3):
            return None
        return cls((shape[0], shape[1], shape[2]))

    def facts(self) -> dict[str, Any]:
        """For a manifest."""
        return {**asdict(self), "shape": list(self.shape)}

    def levels(self, picture: Any) -> np.ndarray:
        """A Pillow image, or the path of a file, as uint8 levels of the network's shape."""
        image = _upright(picture, self.shape[0])
        if self.kind == "drawing":
            image, box = _ink(image)
        else:
            box = self._centre(image.size)
        return _scaled(image, box, self.shape)

    def batch(self, images: Any) -> np.ndarray:
        """Pixels in [0, 1] of shape (N, *shape) from an array, or from a list of pictures and paths."""
        if isinstance(images, str | Path) or _is_picture(images):
            images = [images]
        if isinstance(images, Iterable) and not hasattr(images, "shape"):
            images = list(images)
            if images and all(isinstance(image, str | Path) or _is_picture(image) for image in images):
                return np.stack([self.levels(image) for image in images]) / 255.0
        return checked_pixels(np.asarray(images), self.shape)

    def describe(self) -> str:
        """One sentence for people."""
        channels, height, width = self.shape
        colour = "grey" if channels == 1 else "in colour"
        if self.kind == "drawing":
            return f"the ink is centred, light on dark, and scaled to {width}×{height} pixels, {colour}"
        if self.shorter == max(height, width):
            return f"the centre is cut out and scaled to {width}×{height} pixels, {colour}"
        return f"scaled to {self.shorter} pixels, the centre of {width}×{height} cut out, {colour}"

    def _centre(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """The part of a picture that the cut shows, in the picture's own coordinates."""
        step = min(size) / self.shorter
        width, height = self.shape[2] * step, self.shape[1] * step
        left, top = (size[0] - width) / 2, (size[1] - height) / 2
        return left, top, left + width, top + height


def no_pictures(shape: Sequence[int]) -> ConfigError:
    """For a picture or a path where the model's owner says nothing of pictures: guessing could answer wrongly."""
    return ConfigError(
        "this model does not say how a picture becomes its input, so pictures and paths of pictures cannot be taken; "
        f"give an array (N, {', '.join(map(str, shape))}) of the numbers it was calibrated with, or compile it with "
        "normalize=(mean, std), so that it takes pixels"
    )


def checked_numbers(images: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A batch (N, *shape) of finite floating-point numbers; one image becomes a batch of one."""
    shape = tuple(shape)
    if images.dtype.kind in "USO":
        raise no_pictures(shape)
    if images.shape == shape:
        images = images[None]
    if images.shape[1:] != shape:
        hint = "; put the channels first" if images.shape[1:] == (*shape[1:], *shape[:1]) else ""
        raise ConfigError(f"images have shape {images.shape}; this model takes batches of {shape}{hint}")
    if images.dtype.kind != "f":
        raise ConfigError(f"images are {images.dtype}; this model takes floating-point numbers")
    if not np.isfinite(images).all():
        raise ConfigError("images contain infinities or NaN; give real pixel values")
    return images.astype(np.float64)


def checked_pixels(images: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The same for pixels in [0, 1]: uint8 levels are scaled to it, other numbers beyond it are refused."""
    if images.dtype == np.uint8:
        return checked_numbers(images / 255.0, shape)
    if images.dtype.kind != "f":
        raise ConfigError(f"images are {images.dtype}; give uint8 levels from 0 to 255, or floats from 0 to 1")
    images = checked_numbers(images, shape)
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if low < 0 or high > 1:
        raise ConfigError(
            f"images reach from {low:g} to {high:g}; give uint8 levels from 0 to 255, or floats from 0 to 1 "
            "(before normalisation: that is part of the model)"
        )
    return images


def picture_address(levels: np.ndarray) -> str:
    """Levels (channels, height, width) as a data: address that a page can show; exactly, as a PNG."""
    shown = levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0)
    sink = io.BytesIO()
    _pillow().fromarray(shown).save(sink, "PNG")
    return "data:image/png;base64," + base64.b64encode(sink.getvalue()).decode()


def picture_files(paths: Iterable[Path]) -> list[Path]:
    """The paths, with every folder replaced by the picture files in it."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(entry for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES)
        else:
            found.append(path)
    return found


def _is_picture(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("reading pictures needs Pillow: pip install 'autorep[serve]'") from None
    return Image


def _upright(picture: Any, channels: int) -> Any:
    """Step 1: a Pillow image of mode L or RGB."""
    image_module, name = _pillow(), str(picture) if isinstance(picture, str | Path) else "picture"
    try:
        if not isinstance(picture, str | Path):
            return _flat(picture, channels, name)
        with image_module.open(picture) as opened:
            return _flat(opened, channels, name)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{name}: no such file") from None
    except Exception as error:  # decoders meet damaged files with errors of every kind, and decode late
        raise DataError(f"{name}: cannot be read as a picture ({error})") from None


def _flat(image: Any, channels: int, name: str) -> Any:
    from PIL import ImageOps

    if image.size[0] * image.size[1] > LARGEST_PICTURE:
        raise DataError(f"{name}: {image.size[0]}×{image.size[1]} pixels; at most {LARGEST_PICTURE:,} are read")
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # 16 bits a pixel: 65,535 is white
        levels = (np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535
        image = _pillow().fromarray(levels.astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DataError(f"{name}: {image.mode}-mode pixels (32 bits) have no agreed white; save it with 8 or 16 bits")
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBA", "RGBa", "La"):
        paper = _pillow().new("RGBA", image.size, (255, 255, 255, 255))
        image = _pillow().alpha_composite(paper, image.convert("RGBA")).convert("RGB")
    return image.convert("L" if channels == 1 else "RGB")


def _ink(image: Any) -> tuple[Any, tuple[float, float, float, float]]:
    """A drawing as light ink on black, on a square that the ink fills, and that square."""
    grey = np.asarray(image.convert("L"))
    edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    if edge.mean() > 127:
        grey = 255 - grey
    rows, columns = np.nonzero((grey >= INK).any(1))[0], np.nonzero((grey >= INK).any(0))[0]
    if not len(rows):
        rows, columns = np.arange(grey.shape[0])[[0, -1]], np.arange(grey.shape[1])[[0, -1]]
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    side = max(bottom - top, right - left)
    square = np.zeros((side, side), np.uint8)
    down, across = (side - (bottom - top)) // 2, (side - (right - left)) // 2
    square[down : down + bottom - top, across : across + right - left] = grey[top:bottom, left:right]
    return _pillow().fromarray(square).convert(image.mode), (0.0, 0.0, float(side), float(side))


def _scaled(image: Any, box: tuple[float, float, float, float], shape: tuple[int, int, int]) -> np.ndarray:
    """Step 3, channel by channel in floating point, rounded once at the end."""
    resampling = _pillow().Resampling.BILINEAR
    planes = [np.asarray(band.convert("F").resize((shape[2], shape[1]), resampling, box=box)) for band in image.split()]
    return np.clip(np.floor(np.stack(planes) + 0.5), 0, 255).astype(np.uint8)
