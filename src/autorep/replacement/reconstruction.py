"""Replacement without training: by some unlabelled images, in minutes.

1. Polynomials are fitted to each channel's distribution, elements ranked by their sensitivity, masks put at the budget.
2. `correction`: polynomials and weights by least squares, layer by layer, from the first to the last.
3. Reconstruction, where steps are asked for: every site's output, and the answers, are matched to those of the all-ReLU
   network by gradient steps, with batch norm at its own fixed statistics, so that what is fitted is what will be
   deployed. Distorted copies of the images (`stress`) pull the inputs of polynomials into range meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep.errors import BudgetError, DataError
from autorep.replacement.correction import correct_
from autorep.replacement.course import Course
from autorep.replacement.handle import attach
from autorep.replacement.moments import evaluating
from autorep.replacement.replaced import ReplacedActivations
from autorep.replacement.schedule import cosine
from autorep.replacement.settings import CourseSettings
from autorep.replacement.softened import distillation

RANKING_PIXELS = 1 << 18  # of the images that elements are ranked by, at a time
CORRECTION_PIXELS = 1 << 20  # of the images that least squares are solved on
CLIP = 1.0  # largest norm of a step's gradient


def fit_without_training_(
    model: nn.Module, images: Tensor, *, steps: int = 0, batch: int = 64, rate: float = 5e-4, seed: int = 0
) -> None:
    """Bring a model with replaced activations down to its budget, in place, by unlabelled images alone.

    Args:
        model: as `replace_activations_` left it, all activations still kept and a budget set.
        images: normalised; some two thousand are enough.
        steps: gradient steps of the reconstruction; 0 leaves it at least squares. On a ResNet-20, 300 steps change
            the accuracy little, but far fewer images run away (bench/results/training).
        batch: images in a step; they are shifted by up to an eighth of their side each time.
        rate: of the weights, with Adam, at its highest; coefficients have four times as much.
        seed: decides the order and the shifts.
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
    settings = CourseSettings(curve=1.0, average=0.0)  # scores must rank by what full quadratics miss
    pixels = images[0, 0].numel()
    course = Course(model, handle, lambda: images.split(max(1, RANKING_PIXELS // pixels)), 0, settings, epoch_steps=1)
    course.begin_()
    handle.settle_(budget)
    correct_(model, images[: max(1, CORRECTION_PIXELS // pixels)], seed=seed)
    if steps:
        with _at_inference_statistics(model, handle):
            _reconstruct_(course, reference, images, steps, batch, rate, torch.Generator().manual_seed(seed))
    course.end_()


def _reconstruct_(
    course: Course, reference: nn.Module, images: Tensor, steps: int, batch: int, rate: float, draw: torch.Generator
) -> None:
    model, handle = course.model, course.handle
    weights, coefficients = handle.weights(), handle.coefficient_parameters()
    optimizer = torch.optim.Adam([{"params": weights, "peak": rate}, {"params": coefficients, "peak": 4 * rate}])
    with _outputs(handle) as own, _outputs(attach(reference)) as others:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * cosine(step, steps, 0.1)
            chosen = torch.randint(len(images), (min(batch, len(images)),), generator=draw)
            x = _shifted(images[chosen], draw)
            with torch.no_grad():
                answers = reference(x)
            logits = model(x)
            parts = [_distance(mine, theirs) for mine, theirs in zip(own, others, strict=True)]
            own.clear()
            others.clear()
            loss = torch.stack(parts).mean() + distillation(logits, answers) + course.loss()
            own.clear()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_([*weights, *coefficients], CLIP)
            optimizer.step()
            course.taken += 1


@contextmanager
def _at_inference_statistics(model: nn.Module, handle: ReplacedActivations) -> Iterator[None]:
    """Everything in evaluation mode but the sites, whose training forwards limit and measure their inputs."""
    with evaluating(model):
        model.training = True  # of the outermost module alone: the course takes its images from training forwards
        for site in handle.sites.values():
            site.train()
        yield


@contextmanager
def _outputs(handle: ReplacedActivations) -> Iterator[list[Tensor]]:
    """A list that every forward extends by the outputs of all sites."""
    seen: list[Tensor] = []

    def keep(site: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output)

    hooks = [site.register_forward_hook(keep) for site in handle.sites.values()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _distance(mine: Tensor, theirs: Tensor) -> Tensor:
    """Squared distance, relative to the all-ReLU network's output."""
    return (mine - theirs).square().mean() / theirs.square().mean().clamp_min(1e-12)


def _shifted(x: Tensor, draw: torch.Generator) -> Tensor:
    """The images moved by up to an eighth of their side, borders mirrored."""
    pad = max(min(x.shape[-2:]) // 8, 1)
    top, left = torch.randint(0, 2 * pad + 1, (2,), generator=draw).tolist()
    moved = F.pad(x, (pad, pad, pad, pad), mode="reflect")[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return moved.contiguous(memory_format=torch.channels_last)
