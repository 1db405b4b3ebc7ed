"""Standard shifts: images as other cameras, other light and other people would send them.

Each changes pixels in [0, 1] and leaves them there; labels stay. `measure` says for each of them how many images a
replaced network loses (`program.room`: a value leaves what its program can hold, or is not finite), how many go far
(`replacement.reach`) and how many are still answered rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep.data import Dataset, Images
from autorep.data.augment import generator
from autorep.modes import Program
from autorep.program.room import room_taken
from autorep.replacement import attach
from autorep.replacement.reach import Reach, reach

_BATCH = 500


def _contrast(pixels: Tensor) -> Tensor:
    grey = pixels.mean((1, 2, 3), keepdim=True)
    return grey + 1.5 * (pixels - grey)


def _noise(pixels: Tensor) -> Tensor:
    return pixels + 0.1 * torch.randn(pixels.shape, generator=generator("shift", len(pixels)))


def _blur(pixels: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, 1)


SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contrast × 1.5": _contrast,
    "brightness × 0.5": lambda pixels: 0.5 * pixels,
    "brightness × 1.5": lambda pixels: 1.5 * pixels,
    "noise 0.1": _noise,
    "blur 3 × 3": _blur,
}


def solid_colours(channels: int, side: int, levels: int = 4) -> Tensor:
    """Every colour of `levels` values a channel, one image each, pixels in [0, 1]."""
    values = torch.linspace(0, 1, levels)
    grid = torch.cartesian_prod(*[values] * channels).reshape(-1, channels, 1, 1)
    return grid.expand(-1, -1, side, side)


def measure(
    model: nn.Module, program: Program | None, images: Images, dataset: Dataset, shifted: int = 2000
) -> tuple[list[dict[str, Any]], Reach]:
    """A row per shift (images, lost, far, accuracy where there are labels), images as they are first; their reach.

    All images are taken as they are, the first `shifted` of them with every shift. Without a program, of a network that
    cannot be compiled, only images without a finite answer count as lost.
    """
    count = min(shifted, len(images))

    def row(name: str, change: Callable[[Tensor], Tensor], many: int) -> tuple[dict[str, Any], Reach]:
        return _row(name, model, program, lambda: map(change, pixels_of(images, many)), dataset, images.labels[:many])

    first, plain = row("none", lambda pixels: pixels, len(images))
    rows = [first, *(row(name, change, count)[0] for name, change in SHIFTS.items())]
    channels, side, _ = dataset.shape
    rows.append(strange("solid colours", model, program, lambda: [solid_colours(channels, side)], dataset))
    return rows, plain


def strange(
    name: str, model: nn.Module, program: Program | None, pixels: Callable[[], Iterable[Tensor]], dataset: Dataset
) -> dict[str, Any]:
    """The row of images that have no label of this network's."""
    return _row(name, model, program, pixels, dataset)[0]


def reach_of(model: nn.Module, pixels: Iterable[Tensor], dataset: Dataset) -> Reach:
    """The reach of images given as batches of pixels in [0, 1]; what leaves that range is cut off."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))
    device = next(model.parameters()).device
    batches = (((part.clamp(0, 1) - mean) / std).to(device) for part in pixels)
    return reach(model, attach(model).sites, (x.contiguous(memory_format=torch.channels_last) for x in batches))


def lost(program: Program, pixels: Iterable[Tensor]) -> Tensor:
    """Which images, given as batches of pixels in [0, 1], leave what the program can hold."""
    parts = [room_taken(program, part.clamp(0, 1).numpy(), _convolution) for part in pixels]
    return torch.from_numpy(np.concatenate(parts) > 1)


def _convolution(
    x: np.ndarray,
    weight: np.ndarray,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> np.ndarray:
    """Torch's, which takes half the time of the program's own."""
    wide = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(weight)
    return F.conv2d(*wide, None, stride, padding, dilation, groups).numpy()


def pixels_of(images: Images, count: int, batch: int = _BATCH) -> Iterator[Tensor]:
    """The first images, as many as there are, in batches; pixels in [0, 1]."""
    count = min(count, len(images))
    for start in range(0, count, batch):
        yield images.take(torch.arange(start, min(start + batch, count))).float() / 255


def _row(
    shift: str,
    model: nn.Module,
    program: Program | None,
    pixels: Callable[[], Iterable[Tensor]],
    dataset: Dataset,
    labels: Tensor | None = None,
) -> tuple[dict[str, Any], Reach]:
    found = reach_of(model, pixels(), dataset)
    logits = found.logits.cpu()
    wrong = ~torch.isfinite(logits).all(1)
    if program is not None:
        wrong |= lost(program, pixels())
    row = {"shift": shift, "images": len(wrong), "lost": int(wrong.sum()), "far": int(found.far.sum())}
    if labels is not None:
        right = (logits.argmax(1) == labels) & ~wrong
        row["accuracy"] = round(100 * float(right.float().mean()), 2)
    return row, found
