"""Batches: random crop, flip and normalisation on whole tensors, drawn from a counter instead of a state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from autorep.data.dataset import Dataset, Images


def generator(*key: int | str) -> torch.Generator:
    """A generator that depends on the key alone, so any step of a run can be repeated without its history."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def draw_shifts(count: int, pad: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each image: rows down and columns right to cut at (0 to 2·pad), and whether to mirror it."""
    top, left = torch.randint(0, 2 * pad + 1, (2, count), generator=draw)
    return top, left, torch.rand(count, generator=draw) < 0.5


def crop_flip(
    images: torch.Tensor, pad: int, top: torch.Tensor, left: torch.Tensor, mirrored: torch.Tensor
) -> torch.Tensor:
    """Pad with zeros, cut each image at its own place, mirror the chosen ones: one gather for the batch."""
    count, _, height, width = images.shape
    padded = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + left[:, None]
    rows = torch.arange(height) + top[:, None]
    picked = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)  # stays channels-last in memory


def normalise(images: torch.Tensor, dataset: Dataset) -> torch.Tensor:
    """uint8 pixels to float32 with the data set's mean 0 and deviation 1 per channel."""
    mean = torch.tensor(dataset.mean, device=images.device).view(1, -1, 1, 1)
    std = torch.tensor(dataset.std, device=images.device).view(1, -1, 1, 1)
    return (images.float() / 255 - mean) / std


def epoch_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The order in which an epoch visits the training images."""
    return torch.randperm(count, generator=generator("order", seed, epoch))


def training_batch(
    dataset: Dataset, index: torch.Tensor, key: tuple[int, int], share: slice, augment: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """One normalised batch: the images `index[share]`, augmented as the step's key (seed, step) says.

    Random numbers are drawn for the whole batch and then cut, so several processes that each take a share see exactly
    the images that one process would.
    """
    images = dataset.train.take(index[share])
    if augment:
        top, left, mirrored = draw_shifts(len(index), dataset.pad, generator("augment", *key))
        mirrored &= torch.tensor(dataset.flip)
        images = crop_flip(images, dataset.pad, top[share], left[share], mirrored[share])
    return normalise(images, dataset), dataset.train.labels[index[share]]


def evaluation_batches(
    images: Images, dataset: Dataset, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """All images in order, normalised, not augmented."""
    for start in range(0, len(images), batch_size):
        index = torch.arange(start, min(start + batch_size, len(images)))
        yield normalise(images.take(index), dataset), images.labels[index]
