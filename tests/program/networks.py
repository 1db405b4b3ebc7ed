"""Random small networks with everything the compiler knows: residuals, strides, groups, pools, gates, mixed masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from autorep.replacement import attach, replace_activations_

BLOCKS = (
    "conv",
    "depthwise",
    "dilated",
    "strided",
    "residual",
    "preactivation",
    "average",
    "maximum",
    "concat",
    "gate",
)


CURVE = 0.2  # share of DaPa's curvature: half a dozen full quadratics in a row run away


class ConvNorm(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, kernel: int = 3, **options: int) -> None:
        padding = options.get("dilation", 1) * (kernel // 2)
        super().__init__(nn.Conv2d(inputs, outputs, kernel, padding=padding, **options), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(channels, channels), ConvNorm(channels, channels)

    def forward(self, x):
        return F.relu(self.second(torch.relu(self.first(x))) + x)


class PreActivation(nn.Module):
    """Batch norm of a residual sum, which cannot be folded into a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x):
        x = x + self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(self.norm2(x).relu())


class Branches(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.left, self.right = ConvNorm(channels, channels - 2, 1), ConvNorm(channels, 2)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(self.norm(torch.cat([F.relu(self.left(x)), self.right(x)], 1)))


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, hard: bool = False) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)
        self.gate = nn.Hardsigmoid() if hard else nn.Sigmoid()

    def forward(self, x):
        return x * self.gate(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


def block(kind: str, channels: int) -> nn.Module:
    if kind == "residual":
        return Residual(channels)
    if kind == "preactivation":
        return PreActivation(channels)
    if kind == "average":
        return nn.AvgPool2d(2, 2)
    if kind == "maximum":
        return nn.MaxPool2d(3, 2, 1)
    if kind == "concat":
        return Branches(channels)
    if kind in ("gate", "hard gate"):
        return Gate(channels, hard=kind == "hard gate")
    options = {"depthwise": {"groups": channels}, "dilated": {"dilation": 2}, "strided": {"stride": 2}}.get(kind, {})
    return nn.Sequential(ConvNorm(channels, channels, **options), nn.ReLU6() if kind == "depthwise" else nn.ReLU())


class Network(nn.Module):
    """A stem, the given blocks, a head."""

    def __init__(self, kinds: Sequence[str], seed: int = 0, channels: int = 4, classes: int = 5) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = ConvNorm(3, channels)
        self.blocks = nn.Sequential(*(block(kind, channels) for kind in kinds))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(channels, classes)
        settle_(self, images(32, seed))

    def forward(self, x):
        x = self.blocks(self.stem(x))
        x = F.avg_pool2d(x, x.shape[-1]).view(x.size(0), -1)
        return self.head(self.dropout(x))


def images(count: int, seed: int = 0, shape: tuple[int, ...] = (3, 16, 16)) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def settle_(model: nn.Module, x: torch.Tensor) -> None:
    """Uneven batch norms with the statistics of these images, as after training; ends in evaluation mode."""
    generator = torch.Generator().manual_seed(7)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 1.0
            norm.weight.copy_(0.5 + torch.rand(norm.weight.shape, generator=generator))
            norm.bias.copy_(0.3 * torch.randn(norm.bias.shape, generator=generator))
    model.train()
    model(x)
    model.eval()


@torch.no_grad()
def mask_(model: nn.Module, shares: Sequence[float], seed: int = 0) -> None:
    """Replace activations and keep about the given share of each site in turn (0 none, 1 all).

    The polynomials are DaPa's, flattened (CURVE).
    """
    x = images(32, seed)
    replace_activations_(model, x[:2]).calibrate_(model, [x], curve=CURVE)
    generator = torch.Generator().manual_seed(seed)
    for number, site in enumerate(attach(model).sites.values()):
        share = shares[number % len(shares)]
        site.mask.copy_((torch.rand(site.mask.shape, generator=generator) < share).to(site.mask.dtype))
    settle_(model, x)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """A network in evaluation mode, plain or replaced."""
    seed = draw(st.integers(0, 2**16))
    kinds = draw(st.lists(st.sampled_from([*BLOCKS, "hard gate"]), min_size=1, max_size=4))
    while kinds.count("average") + kinds.count("maximum") + kinds.count("strided") > 2:
        kinds.pop()
    network = Network(kinds, seed)
    shares = draw(st.sampled_from([None, (1.0,), (0.0,), (0.3, 0.0, 1.0)]))
    if shares is not None and any(kind not in ("average", "maximum") for kind in kinds):
        mask_(network, shares, seed)
    return network.eval()
