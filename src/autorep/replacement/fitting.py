"""Polynomials by least squares on what their channels really see.

DaPa takes a channel's inputs to be normal. Real ones have longer tails, on which its quadratic is too steep; in a deep
network such errors multiply. The least-squares quadratic of a sample needs one more pass over the calibration images
than DaPa's moments, and no assumption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autorep.replacement.activation import MaskedActivation, trainable_curve, wide
from autorep.replacement.moments import Batches, all_reduce_, evaluating, prepared

STEADY = 0.1  # least deviation a channel is credited with, as a share of its layer's median
ELEMENTS = 1 << 22  # of a site's input that are summed up at a time


def steady_(sites: Iterable[MaskedActivation]) -> None:
    """A dead channel has next to no deviation: measured in it, the least change of the weights is a huge one."""
    for site in sites:
        site.std.clamp_(min=STEADY * float(site.std.median()))


def fittable(site: MaskedActivation) -> bool:
    """Whether the site has a quadratic of its own in every channel."""
    return site.granularity == "channel" and site.degree == 2 and site.native


@torch.no_grad()
def fit_polynomials_(
    model: nn.Module, sites: Mapping[str, MaskedActivation], batches: Batches, curve: float = 1.0
) -> None:
    """Every channel's quadratic by least squares on the inputs it has while all activations are kept, in place.

    The sites are calibrated, and `steady_`; among several processes all call it and get the same numbers.

    Args:
        curve: share of the curvature to start with.
    """
    sums = {
        name: torch.zeros(site.channels, 9, dtype=torch.float64, device=site.mean.device)
        for name, site in sites.items()
        if fittable(site)
    }

    def follow(name: str, site: MaskedActivation) -> torch.utils.hooks.RemovableHandle:
        def gather(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            for z in args[0].float().split(max(1, ELEMENTS // site.mask.numel())):
                sums[name] += _products((z - site.mean.view(wide(z))) / site.std.view(wide(z)), site.keep(z))

        return site.register_forward_pre_hook(gather)

    with evaluating(model):
        hooks = [follow(name, sites[name]) for name in sums]
        try:
            for images, *_ in prepared(batches, model):
                model(images)
        finally:
            for hook in hooks:
                hook.remove()
    for name, total in sums.items():
        site, mean = sites[name], all_reduce_(total)
        mean = mean / mean[:, :1]
        gram = mean[:, [0, 1, 2, 1, 4, 5, 2, 5, 7]].unflatten(1, (3, 3))
        site.coefficients.copy_(solved(gram, mean[:, [3, 6, 8]], site.std.double(), curve))


def _products(u: Tensor, target: Tensor) -> Tensor:
    """Per channel, sums of 1, u, v, t, u², u·v, u·t, v², v·t over images and positions; v = u² − 1, t the target."""
    v = u.square() - 1
    products = (torch.ones_like(u), u, v, target, u * u, u * v, u * target, v * v, v * target)
    return torch.stack([p.transpose(0, 1).flatten(1).sum(1) for p in products], -1).double()


def solved(gram: Tensor, moments: Tensor, deviation: Tensor, curve: float = 1.0) -> Tensor:
    """Coefficients of each channel's least-squares quadratic, as a site holds them, from means of products of the basis
    1, u, u² − 1 with itself and with the target."""
    # A channel without replaced positions has an empty system; the small diagonal keeps it solvable.
    gram = gram + torch.diag(gram.new_tensor([1e-6, 1e-6, 1e-3]))
    series = torch.linalg.solve(gram, moments)
    line = torch.linalg.solve(gram[:, :2, :2], moments[:, :2])
    flat = series[:, 2] <= 0  # a concave fit would turn outliers over: take the best line instead
    series[flat] = F.pad(line[flat], (0, 1))
    series = series / deviation[:, None]
    series[:, 2] = trainable_curve(curve * series[:, 2])
    return series.T.float()
