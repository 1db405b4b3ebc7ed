"""What both examples share: the embedded digits, an ordinary training loop, and a comparison of three runs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from autorep import Program, Replacement, data


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
    replacement: Replacement | None = None,
) -> None:
    """Adam with a cosine schedule; with a replacement, its activations come down to the budget meanwhile."""
    batch = 64
    steps = epochs * (len(images) // batch)
    weights = list(model.parameters())
    if replacement is not None:
        replacement.begin(model, images[:512].split(64), steps)
        weights = replacement.weights()
    optimizer = torch.optim.Adam(weights, rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for step in range(steps):
        if step % (len(images) // batch) == 0:
            order = torch.randperm(len(images))
        index = order[step * batch % (len(images) // batch * batch) :][:batch]
        loss = F.cross_entropy(model(images[index]), labels[index])
        if replacement is not None:
            loss = loss + replacement.loss()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        if replacement is not None:
            replacement.step()
    if replacement is not None:
        replacement.finalize_()
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
