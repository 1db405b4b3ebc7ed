"""Standard shifts: images as other cameras, other light and other people would send them.

Each changes pixels in [0, 1] and leaves them there; labels stay. `measure` says for each of them how many images a
replaced network loses (see `replacement.reach`) and how many it still answers rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep.data import Dataset, Images
from autorep.data.augment import generator
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
    model: nn.Module, images: Images, dataset: Dataset, shifted: int = 2000
) -> tuple[list[dict[str, Any]], Reach]:
    """A row per shift (images, lost, accuracy where there are labels), the images as they are first; and their reach.

    All images are taken as they are, the first `shifted` of them with every shift.
    """
    count = min(shifted, len(images))
    plain = reach_of(model, pixels_of(images, len(images)), dataset)
    rows = [_row("none", plain, images.labels)]
    for name, change in SHIFTS.items():
        rows.append(_row(name, reach_of(model, map(change, pixels_of(images, count)), dataset), images.labels[:count]))
    channels, side, _ = dataset.shape
    rows.append(strange("solid colours", model, [solid_colours(channels, side)], dataset))
    return rows, plain


def strange(name: str, model: nn.Module, pixels: Iterable[Tensor], dataset: Dataset) -> dict[str, Any]:
    """The row of images that have no label of this network's."""
    found = reach_of(model, pixels, dataset)
    return {"shift": name, "images": len(found.lost), "lost": int(found.lost.sum())}


def reach_of(model: nn.Module, pixels: Iterable[Tensor], dataset: Dataset) -> Reach:
    """The reach of images given as batches of pixels in [0, 1]; what leaves that range is cut off."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))
    device = next(model.parameters()).device
    batches = (((part.clamp(0, 1) - mean) / std).to(device) for part in pixels)
    return reach(model, attach(model).sites, (x.contiguous(memory_format=torch.channels_last) for x in batches))


def pixels_of(images: Images, count: int) -> Iterator[Tensor]:
    """The first images in batches, pixels in [0, 1]."""
    for start in range(0, count, _BATCH):
        yield images.take(torch.arange(start, min(start + _BATCH, count))).float() / 255


def _row(shift: str, found: Reach, labels: Tensor) -> dict[str, Any]:
    right = (found.logits.cpu().argmax(1) == labels) & torch.isfinite(found.logits.cpu()).all(1)
    accuracy = round(100 * float(right.float().mean()), 2)
    return {"shift": shift, "images": len(labels), "lost": int(found.lost.sum()), "accuracy": accuracy}
