"""Stress: images, as they are and distorted, that the replaced network must bear without running away.

Quadratics feed quadratics, so an input a few deviations beyond what was calibrated is squared layer after layer. The
mean range penalty of a batch does not see the one image that escapes, and batch norm in training mode divides by the
batch's own statistics, escaped image included, which inference will not do. So every other step the images of the batch
that went furthest, and as many distorted (contrast, brightness, noise, solid colours, blocks), are sent through the
network with batch norm at its running statistics, and at each site each image pays

    log(1 + Σ (1 − mask)·relu(|z| − limit)² / limit²)    z = (Z − mean)/std, summed over its elements.

A logarithm, because along a chain of quadratics excess grows as a power of a power: no image's gradient is larger when
it is lost than when it begins to leave. For the same reason a polynomial passes gradients on with a slope of at most 1,
a ReLU's: its true slope far out, multiplied site after site, would make the gradient as wild as the image (norms of
some hundreds where the task's is 5), and cutting such a gradient down leaves little but noise. Inputs are cut off at
`REACH` deviations, so everything stays finite. Where there is a teacher, the images are also answered as it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep.replacement.moments import evaluating, inputs_of
from autorep.replacement.replaced import ReplacedActivations

REACH = 16.0  # deviations at which inputs are cut off
SLOPE = 1.0  # largest with which a polynomial passes gradients on
SPREAD = 2.5  # contrast and brightness are multiplied by up to so much, or divided
NOISE = 0.15  # largest deviation of the noise, of which three images in ten have some; 1 is the range of the pixels


class Stress:
    """Distorts images and measures how far the network's inputs of polynomials then leave their range."""

    def __init__(self, model: nn.Module, handle: ReplacedActivations, batches: Iterable[Any], limit: float) -> None:
        self.model, self.handle, self.limit = model, handle, limit
        images = [inputs_of(batch)[0] for batch in batches]
        self.low = torch.stack([x.amin((0, 2, 3)) for x in images]).amin(0).view(-1, 1, 1)
        self.high = torch.stack([x.amax((0, 2, 3)) for x in images]).amax(0).view(-1, 1, 1)

    def images(self, batch: Tensor, sums: Tensor | None, count: int, draw: torch.Generator) -> Tensor:
        """So many images, or as many as there are: half as they are, those that go furthest; the others distorted.

        sums: (sites, images), how far each image of the batch went in the training forward; without it, any will do.
        """
        half = max(min(count, len(batch)) // 2, 1)
        if sums is not None:
            relative = sums.detach() / sums.detach().mean(1, keepdim=True).clamp_min(1e-12)
            furthest = relative.amax(0).topk(half).indices
        else:
            furthest = torch.arange(half, device=batch.device)
        distorted = self.distort(batch[len(batch) - half :], draw)
        return torch.cat([batch[furthest], distorted]).contiguous(memory_format=torch.channels_last)

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The range term, an image's on average, and the logits."""
        sites = list(self.handle.sites.values())
        former = [(site.range_limit, site.input_limit, site.slope_limit, site.tracking) for site in sites]
        with evaluating(self.model):
            for site in sites:
                site.train()
                site.range_limit, site.input_limit, site.slope_limit, site.tracking = self.limit, REACH, SLOPE, False
            try:
                logits = self.model(x).float()
            finally:
                for site, limits in zip(sites, former):
                    site.range_limit, site.input_limit, site.slope_limit, site.tracking = limits
        return torch.log1p(self.handle.take_range_sums() / self.limit**2).sum() / len(x), logits

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
