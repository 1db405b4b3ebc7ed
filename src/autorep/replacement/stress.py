"""Stress: distorted copies of training images that the replaced network must bear without running away.

Quadratics feed quadratics, so an input a few deviations beyond what was calibrated is squared layer after layer. The
mean range penalty of a batch does not see the one image that escapes, and batch norm in training mode divides by the
batch's own statistics, escaped image included, which inference will not do. So every other step a few images of the
batch are distorted (contrast, brightness, noise, solid colours, blocks), sent through the network with batch norm at
its running statistics, and each site pays

    log(1 + Σ (1 − mask)·relu(|z| − limit)² / limit²)    z = (Z − mean)/std, summed over images and elements.

A logarithm, because along a chain of quadratics excess grows as a power of a power: its gradient is that of the worst
image, but no larger when that image is lost than when it begins to leave. Inputs are cut off at `REACH` deviations, so
everything stays finite. Where there is a teacher, the distorted images are also answered as it answers them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep.replacement.handle import Replacement
from autorep.replacement.moments import evaluating, inputs_of

REACH = 16.0  # deviations at which inputs are cut off
SPREAD = 2.5  # contrast and brightness are multiplied by up to so much, or divided
NOISE = 0.15  # largest deviation of the noise, of which three images in ten have some; 1 is the range of the pixels


class Stress:
    """Distorts images and measures how far the network's inputs of polynomials then leave their range."""

    def __init__(self, model: nn.Module, handle: Replacement, batches: Iterable[Any], limit: float) -> None:
        self.model, self.handle, self.limit = model, handle, limit
        images = [inputs_of(batch)[0] for batch in batches]
        self.low = torch.stack([x.amin((0, 2, 3)) for x in images]).amin(0).view(-1, 1, 1)
        self.high = torch.stack([x.amax((0, 2, 3)) for x in images]).amax(0).view(-1, 1, 1)

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The range term of these images, and the logits."""
        sites = list(self.handle.sites.values())
        former = [(site.range_limit, site.input_limit, site.tracking) for site in sites]
        with evaluating(self.model):
            for site in sites:
                site.train()
                site.range_limit, site.input_limit, site.tracking = self.limit, REACH, False
            try:
                logits = self.model(x).float()
            finally:
                for site, limits in zip(sites, former):
                    site.range_limit, site.input_limit, site.tracking = limits
        sums = torch.stack([site.range_sum for site in sites if site.range_sum is not None])
        for site in sites:
            site.range_sum = None
        return torch.log1p(sums / self.limit**2).sum(), logits

    def distort(self, x: Tensor, draw: torch.Generator) -> Tensor:
        """Copies of the images, changed as cameras, light and unfriendly clients change them; pixels stay in range."""
        count, channels, height, width = x.shape
        low, high = self.low.to(x), self.high.to(x)
        pixels = ((x - low) / (high - low)).cpu()

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=draw)

        def factor() -> Tensor:
            return torch.exp((2 * uniform(count, 1, 1, 1) - 1) * math.log(SPREAD))

        brightness, contrast = factor(), factor()
        grey = torch.where(uniform(count, 1, 1, 1) < 0.5, pixels.mean((1, 2, 3), keepdim=True), 0.5)
        noise = NOISE * uniform(count, 1, 1, 1) * (uniform(count, 1, 1, 1) < 0.3)
        pixels = brightness * (grey + contrast * (pixels - grey)) + noise * torch.randn(x.shape, generator=draw)
        solid = max(count // 8, 1)
        pixels[:solid] = uniform(solid, channels, 1, 1)
        pixels[0] = (uniform(channels, 1, 1) > 0.5).float()  # a corner of the cube of colours
        if count > solid:
            side = int(torch.randint(1, max(height, width) // 2 + 1, (), generator=draw))
            blocks = uniform(1, channels, side, side)
            pixels[solid] = F.interpolate(blocks.round() if blocks[0, 0, 0, 0] < 0.5 else blocks, (height, width))[0]
        stressed = low + (high - low) * pixels.clamp(0, 1).to(x)
        return stressed.contiguous(memory_format=torch.channels_last)
