"""PReLU in two parts, slope·x + (1 − slope)·relu(x): its ReLU is then a call site as any other.

The learned slopes stay parameters of the same names, and go on training; a replaced element becomes
slope·x + (1 − slope)·poly(x), a quadratic again.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn


@fx.wrap
def per_channel(weight: Tensor, x: Tensor) -> Tensor:
    """One slope for all of x, or one for each of its channels (dimension 1)."""
    return weight.view((-1,) + (1,) * max(x.dim() - 2, 0))


class PReLUPart(nn.ReLU):
    """The ReLU inside a PReLU."""


class OpenedPReLU(nn.Module):
    """What nn.PReLU computes, its ReLU a module of its own."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.relu = weight, PReLUPart()

    def forward(self, x: Tensor) -> Tensor:
        slope = per_channel(self.weight, x)
        return slope * x + (1 - slope) * self.relu(x)


def open_prelus_(model: nn.Module) -> None:
    """Exchange every nn.PReLU below `model`; one that is registered at two places stays one."""
    opened: dict[int, OpenedPReLU] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, nn.PReLU):
                parent._modules[name] = opened.setdefault(id(child), OpenedPReLU(child.weight).train(child.training))


def calls_prelu(node: fx.Node) -> bool:
    """Whether a traced call is of torch's function, which has no module to be exchanged."""
    return node.target in (torch.prelu, nn.functional.prelu, "prelu")
