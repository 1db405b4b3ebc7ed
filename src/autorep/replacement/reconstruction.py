"""Replacement without training: by some unlabelled images, in minutes.

1. Polynomials are fitted to each channel's inputs, elements ranked by their sensitivity, masks put at the budget.
2. `correction`: polynomials and weights by least squares, layer by layer, from the first to the last.
3. Reconstruction: the answers, and the last site's output at every resolution, are matched to those of the all-ReLU
   network by gradient steps. A few thousand images are soon known by heart, so every step sees new ones made of them:
   shifted, mirrored, and half of them mixed with another image. The all-ReLU network answers whatever it is shown, so
   no label is needed for any of it. The course beside it (`course`) keeps the inputs of polynomials in range.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from autorep.errors import BudgetError, DataError
from autorep.replacement.correction import correct_
from autorep.replacement.course import Course
from autorep.replacement.fitting import fit_polynomials_, steady_
from autorep.replacement.handle import Replacement, attach
from autorep.replacement.schedule import cosine
from autorep.replacement.selection.ramp import ramp_scores
from autorep.replacement.settings import CourseSettings
from autorep.replacement.softened import distillation

RANKING_PIXELS = 1 << 18  # of the images that elements are ranked by, at a time
CORRECTION_IMAGES = 1024  # that least squares are solved on; more were no better on CIFAR
CORRECTION_PIXELS = 1 << 23  # of them at the most: 167 photos of 224 × 224, and 7.5 GB of memory for EfficientNet-Lite0
STEPS = 1200  # of the reconstruction
MIXED = 0.5  # share of a step's images that are mixed with another
WARMUP = 0.04  # share of the steps in which the rate rises
CLIP = 5.0  # largest norm of a step's gradient
MATCHING = CourseSettings(average=0.995, input_limit=12.0, input_opening=1.3)  # the masks are final, all is fine-tuning


def fit_without_training_(
    model: nn.Module,
    images: Tensor,
    *,
    steps: int = STEPS,
    batch: int = 128,
    rate: float = 0.006,
    precision: torch.dtype = torch.float32,
    seed: int = 0,
) -> None:
    """Bring a model with replaced activations down to its budget, in place, by unlabelled images alone.

    Args:
        model: as `replace_activations_` left it, all activations still kept and a budget set.
        images: normalised; some two thousand are enough.
        steps: gradient steps of the reconstruction; 0 leaves it at least squares, which is faster and far less accurate
            (bench/results/training). A step takes as long as five forward passes of the batch.
        batch: images in a step; batch norm takes its statistics from them, so a dozen at the very least.
        rate: of the weights, at its highest.
        precision: of the reconstruction's passes; torch.bfloat16 is faster where the processor has it.
        seed: decides what the steps see.
    """
    handle = attach(model)
    budget = handle.require_budget()
    if handle.count() != handle.total:
        raise BudgetError(
            f"{handle.total - handle.count():,} activations are replaced already; start with a fresh model"
        )
    if images.dim() != 4 or not len(images):
        raise DataError(f"images of shape {tuple(images.shape)}; expected (N, C, H, W) with at least one image")
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    pixels = images[0, 0].numel()
    few = images.split(max(1, RANKING_PIXELS // pixels))
    handle.calibrate_(model, few)
    steady_(handle.sites.values())
    fit_polynomials_(model, handle.sites, few)
    ranking = Course(model, handle, lambda: few, 0, CourseSettings(average=0.0), epoch_steps=1)
    handle.start_from_(ramp_scores(ranking.ctx))
    ranking.end_()
    handle.settle_(budget)
    correct_(model, images[: max(1, min(CORRECTION_IMAGES, CORRECTION_PIXELS // pixels))], seed=seed)
    if steps:
        training = model.training
        _reconstruct_(
            model.train(), handle, reference, images, steps, batch, rate, precision, torch.Generator().manual_seed(seed)
        )
        model.train(training)


def _reconstruct_(
    model: nn.Module,
    handle: Replacement,
    reference: nn.Module,
    images: Tensor,
    steps: int,
    batch: int,
    rate: float,
    precision: torch.dtype,
    draw: torch.Generator,
) -> None:
    handle.begin(model, images.split(batch), steps, settings=MATCHING)
    weights = handle.weights()
    optimizer = torch.optim.SGD(weights, momentum=0.9, nesterov=True, weight_decay=5e-4)
    half = torch.autocast(images.device.type, precision, enabled=precision != torch.float32)
    with _outputs(handle) as own, _outputs(attach(reference)) as others:
        for step in tqdm(range(steps), desc="reconstruction", leave=False, disable=None):
            optimizer.param_groups[0]["lr"] = rate * cosine(step, steps, WARMUP)
            x = varied(images[torch.randint(len(images), (batch,), generator=draw)], draw)
            with half:
                with torch.no_grad():
                    answers = reference(x).float()
                logits = model(x).float()
            distances = torch.stack([_distance(own.pop(name), theirs) for name, theirs in others.items()])
            loss = distillation(logits, answers) + distances.mean() + handle.loss()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(weights, CLIP)
            optimizer.step()
            handle.step()
    handle.course.end_()


@contextmanager
def _outputs(handle: Replacement) -> Iterator[dict[str, Tensor]]:
    """What the last site of every resolution gave in the last forward, by its name."""
    last = {site.mask.shape[1:]: name for name, site in handle.sites.items()}
    seen: dict[str, Tensor] = {}

    def keep(name: str, site: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen[name] = output

    hooks = [handle.sites[name].register_forward_hook(partial(keep, name)) for name in last.values()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _distance(mine: Tensor, theirs: Tensor) -> Tensor:
    """Squared distance, relative to the all-ReLU network's output."""
    mine, theirs = mine.float(), theirs.float()
    return (mine - theirs).square().mean() / theirs.square().mean().clamp_min(1e-12)


def varied(x: Tensor, draw: torch.Generator) -> Tensor:
    """Other images made of these: moved by up to an eighth of their side, borders reflected, half of them mirrored; of
    the first ones a share is blended with others as a whole, an equal share gets a rectangle of another."""
    count, _, height, width = x.shape
    pad = max(min(height, width) // 8, 1)
    rows, columns = (torch.randint(0, 2 * pad + 1, (2, count), generator=draw)).tolist()
    mirrored = (torch.rand(count, generator=draw) < 0.5).tolist()
    wide = F.pad(x, (pad, pad, pad, pad), mode="reflect")
    moved = torch.stack([wide[i, :, r : r + height, c : c + width] for i, (r, c) in enumerate(zip(rows, columns))])
    moved[mirrored] = moved[mirrored].flip(-1)
    others = moved[torch.randperm(count, generator=draw)]
    blended, cut = round(MIXED * count / 2), round(MIXED * count)
    share = torch.rand(blended, 1, 1, 1, generator=draw).to(x)
    moved[:blended] = share * moved[:blended] + (1 - share) * others[:blended]
    for i in range(blended, cut):
        down, right = _stretch(height, draw), _stretch(width, draw)
        moved[i, :, down, right] = others[i, :, down, right]
    return moved.contiguous(memory_format=torch.channels_last)


def _stretch(side: int, draw: torch.Generator) -> slice:
    """A random part of a side, from a quarter to three quarters of it."""
    length = int(torch.randint(max(side // 4, 1), max(3 * side // 4, 1) + 1, (), generator=draw))
    start = int(torch.randint(0, side - length + 1, (), generator=draw))
    return slice(start, start + length)
