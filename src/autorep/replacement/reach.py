"""Reach: how far the inputs of polynomials go, image by image. The measure of a network's safety.

A polynomial is fitted to inputs within a few deviations of their mean. Beyond, it grows where a ReLU would not, and the
next layer's polynomial squares that again. An image goes *far* when its answer is not finite, or when any input of a
replaced activation lies beyond `LIMIT` deviations: that is further than the network was trained for. Whether its answer
is still right, fixed point decides, which has room up to some value (`program.room`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autorep.replacement.activation import MaskedActivation
from autorep.replacement.moments import evaluating

LIMIT = 16.0
TAIL = (0.5, 0.99, 0.999)  # quantiles over images that `tails` gives, before the largest


@dataclass(frozen=True, eq=False)
class Reach:
    """What some images do to a network.

    Attributes:
        largest: (images, sites), each image's largest |Z − mean|/std at the replaced positions; infinite where a
            number is not finite.
        logits: the network's answers.
        names: the sites.
    """

    largest: Tensor
    logits: Tensor
    names: tuple[str, ...]

    @property
    def far(self) -> Tensor:
        """Which images go far."""
        return (self.largest > LIMIT).any(1) | ~torch.isfinite(self.logits).all(1)

    def tails(self) -> dict[str, list[float]]:
        """Per site, quantiles of the images' largest inputs (`TAIL`), then the largest of all."""
        points = torch.tensor([*TAIL, 1.0], dtype=torch.float64)
        ranks = (points * (len(self.largest) - 1)).round().long()
        ordered = self.largest.double().sort(0).values[ranks]
        return {name: [round(float(value), 2) for value in column] for name, column in zip(self.names, ordered.T)}


@torch.no_grad()
def reach(model: nn.Module, sites: Mapping[str, MaskedActivation], batches: Iterable[Tensor]) -> Reach:
    """Run the images through the network as it is deployed, and note where they lead its polynomials."""
    seen: list[Tensor] = []

    def follow(site: MaskedActivation) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        replaced = site.mask == 0

        def before(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            z = args[0].float()
            wide = (-1,) + (1,) * (z.dim() - 2)
            deviations = ((z - site.mean.view(wide)) / site.std.view(wide)).abs()
            deviations = torch.where(torch.isfinite(deviations), deviations, torch.inf)
            seen.append((deviations * replaced).nan_to_num(nan=0.0, posinf=torch.inf).flatten(1).amax(1))

        return before

    largest, logits = [], []
    with evaluating(model):
        handles = [site.register_forward_pre_hook(follow(site)) for site in sites.values()]
        try:
            for x in batches:
                logits.append(model(x).float())
                largest.append(torch.stack(seen, 1))
                seen.clear()
        finally:
            for handle in handles:
                handle.remove()
    return Reach(torch.cat(largest), torch.cat(logits), tuple(sites))
