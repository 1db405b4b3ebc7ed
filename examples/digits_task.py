"""What both examples share: the embedded digits, an ordinary training loop, and a comparison of three runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from autorep import data
from autorep.program.ir import Program


def load_digits(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalised training images, their labels, test images, their labels; enlarged from 8×8 to size×size."""
    dataset = data.load("digits")
    parts: list[torch.Tensor] = []
    for images in (dataset.train, dataset.test):
        pixels = images.take(torch.arange(len(images))).float() / 255
        normal = (pixels - dataset.mean[0]) / dataset.std[0]
        parts += [F.interpolate(normal, size=(size, size), mode="bilinear", align_corners=False), images.labels]
    return parts[0], parts[1], parts[2], parts[3]


def train_(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    epochs: int,
    rate: float,
    after_step: Callable[[float], None] = lambda progress: None,
) -> None:
    """Adam with a cosine schedule; `after_step` is told how much of the training is done, from 0 to 1."""
    batch = 64
    steps = epochs * (len(images) // batch)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for step in range(steps):
        if step % (len(images) // batch) == 0:
            order = torch.randperm(len(images))
        index = order[step * batch % (len(images) // batch * batch) :][:batch]
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        after_step((step + 1) / steps)
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Percent of images whose label gets the highest logit."""
    return 100.0 * float((model(images).argmax(1) == labels).float().mean())


def compare(program: Program, images: torch.Tensor, labels: torch.Tensor) -> dict[str, dict[str, float]]:
    """Run the program in float, in fixed point and between two parties; print and return what came out."""
    pixels, truth = images.numpy(), labels.numpy()
    exact = program.run(pixels, mode="float")
    print(f"{'mode':8} {'accuracy':>9} {'same class as float':>20} {'largest difference of a logit':>30}")
    rows: dict[str, dict[str, float]] = {}
    for mode in ("float", "fixed", "secure"):
        logits = exact if mode == "float" else program.run(pixels, mode=mode)
        rows[mode] = {
            "accuracy": 100.0 * float((logits.argmax(1) == truth).mean()),
            "same": 100.0 * float((logits.argmax(1) == exact.argmax(1)).mean()),
            "difference": float(np.abs(logits - exact).max()),
        }
        row = rows[mode]
        print(f"{mode:8} {row['accuracy']:8.1f}% {row['same']:19.1f}% {row['difference']:30.5f}")
    return rows
