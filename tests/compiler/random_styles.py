"""Random networks that change tensors in place, alias them, look at them through views, reuse and hook their layers.

A network is a list of steps. Each reads one or two of the tensors made so far, `v` and `w`, and either changes `v` in
place (it returns nothing) or gives a new tensor, which may share memory with an old one. All tensors are 4×6×6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.program.networks import images, settle_

CHANNELS, SIDE, CLASSES = 4, 6, 3
SHAPE = (3, SIDE, SIDE)
Run = Callable[["RandomStyle", Tensor, Tensor], "Tensor | None"]


def _set_channels(v: Tensor, w: Tensor) -> None:
    v[:, 1:3] = w[:, :2].clone()


def _add_to_slice(v: Tensor, w: Tensor) -> None:
    v[:, ::2] += w[:, 1::2].clone()


def _iadd(v: Tensor, w: Tensor) -> None:
    v += w


def _isub(v: Tensor, w: Tensor) -> None:
    v -= w


def _imul(v: Tensor, factor: float | Tensor) -> None:
    v *= factor


def _shuffle(v: Tensor) -> Tensor:
    return v.reshape(-1, 2, 2, SIDE, SIDE).transpose(1, 2).reshape(-1, CHANNELS, SIDE, SIDE)


def _through_a_view(v: Tensor, change: Callable[[Tensor], object]) -> None:
    change(v.transpose(2, 3)[:, :, 1:5])


def _in_half(v: Tensor, change: Callable[[Tensor], object]) -> None:
    first, _ = v.chunk(2, dim=1)
    change(first)


LAYERS: dict[str, Run] = {
    "conv": lambda m, v, w: m.conv(v),
    "conv by keyword": lambda m, v, w: m.conv(input=v),
    "conv, functional": lambda m, v, w: F.conv2d(v, m.depthwise.weight, padding=1, groups=CHANNELS),
    "depthwise": lambda m, v, w: m.depthwise(v),
    "norm": lambda m, v, w: m.norm(v),
    "norm, then relu": lambda m, v, w: m.inplace(m.norm(v)),
    "dropout": lambda m, v, w: F.dropout(v, 0.5, m.training, inplace=True),
}
NEW: dict[str, Run] = {
    "relu": lambda m, v, w: F.relu(v),
    "relu module": lambda m, v, w: m.relu(v),
    "relu method": lambda m, v, w: v.relu(),
    "clamp": lambda m, v, w: v.clamp(min=0),
    "leaky": lambda m, v, w: F.leaky_relu(v, 0.2),
    "add": lambda m, v, w: v + w,
    "subtract": lambda m, v, w: torch.sub(v, w, alpha=0.5),
    "one minus": lambda m, v, w: 1 - v,
    "scaled": lambda m, v, w: v * m.scale,
    "gate": lambda m, v, w: v * torch.sigmoid(w.mean((2, 3), keepdim=True)),
    "pooled": lambda m, v, w: F.avg_pool2d(v, 3, 1, 1),
    "maximum": lambda m, v, w: F.max_pool2d(v, 3, 1, 1),
    "half and half": lambda m, v, w: torch.cat([v[:, :2], w.chunk(2, 1)[1]], -3),
    "shuffle": lambda m, v, w: _shuffle(v),
    "flip": lambda m, v, w: v.flip(3),
    "clone": lambda m, v, w: v.clone(),
    "zeros": lambda m, v, w: torch.zeros_like(v).copy_(w),
    "out": lambda m, v, w: torch.add(v, w, out=torch.empty_like(v)),
}
ALIASES: dict[str, Run] = {
    "alias": lambda m, v, w: v,
    "detached": lambda m, v, w: v.detach(),
    "reshaped": lambda m, v, w: v.reshape(-1, CHANNELS, SIDE * SIDE).unflatten(-1, (SIDE, SIDE)),
    "transposed": lambda m, v, w: v.transpose(2, 3),
    "reordered": lambda m, v, w: v.permute(0, 2, 3, 1).permute(0, 3, 1, 2),
    "whole slice": lambda m, v, w: v[:, :, 0:],
    "squeezed": lambda m, v, w: v.unsqueeze(1).squeeze(1),
    "perhaps a copy": lambda m, v, w: v.contiguous(),
}
IN_PLACE: dict[str, Run] = {
    "relu_": lambda m, v, w: _nothing(v.relu_()),
    "relu_ module": lambda m, v, w: _nothing(m.inplace(v)),
    "relu_ function": lambda m, v, w: _nothing(F.relu(v, inplace=True)),
    "relu6_": lambda m, v, w: _nothing(F.relu6(v, inplace=True)),
    "hardtanh_": lambda m, v, w: _nothing(F.hardtanh_(v)),
    "leaky_": lambda m, v, w: _nothing(F.leaky_relu_(v, 0.1)),
    "clamp_": lambda m, v, w: _nothing(v.clamp_(-0.5, 1.5)),
    "+=": lambda m, v, w: _iadd(v, w.clone()),  # torch refuses to add a tensor to a view of itself
    "-=": lambda m, v, w: _isub(v, 0.5 * w),
    "*=": lambda m, v, w: _imul(v, 0.75),
    "*= parameter": lambda m, v, w: _imul(v, m.scale),
    "add_": lambda m, v, w: _nothing(v.add_(w.clone(), alpha=0.5)),
    "neg_": lambda m, v, w: _nothing(v.neg_()),
    "copy_": lambda m, v, w: _nothing(v.copy_(w.clone())),
    "set channels": lambda m, v, w: _set_channels(v, w),
    "slice +=": lambda m, v, w: _add_to_slice(v, w),
    "view relu_": lambda m, v, w: _through_a_view(v, Tensor.relu_),
    "view *=": lambda m, v, w: _through_a_view(v, lambda part: part.mul_(0.5)),
    "half zero_": lambda m, v, w: _in_half(v, Tensor.zero_),
    "half clamp_": lambda m, v, w: _in_half(v, lambda part: part.clamp_(-1, 1)),
    "half fill_": lambda m, v, w: _in_half(v, lambda part: part.fill_(0.5)),
}
REFUSED: dict[str, Run] = {
    "whole numbers": lambda m, v, w: v.int().float(),
    "comparison": lambda m, v, w: v * (w > 0),
    "division": lambda m, v, w: v / (1 + w.abs()),
    "root": lambda m, v, w: v.abs().add(1).sqrt(),
}
STEPS = {**LAYERS, **NEW, **ALIASES, **IN_PLACE, **REFUSED}
HOOKS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "halve": lambda output: output * 0.5,
    "relu_ in hook": lambda output: _nothing(output.relu_()),
    "add_ in hook": lambda output: _nothing(output.add_(0.25)),
}


def _nothing(_: Tensor) -> None:
    """The step changed its tensor in place; what the call returned is that tensor."""


@dataclass(frozen=True)
class Step:
    name: str
    reads: int
    other: int


class RandomStyle(nn.Module):
    """A stem, the steps, and a head that reads the last tensor and another one."""

    def __init__(self, steps: Sequence[Step], hook: str | None, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.conv = nn.Conv2d(3, CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)
        self.norm, self.relu, self.inplace = nn.BatchNorm2d(CHANNELS), nn.ReLU(), nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.rand(1, CHANNELS, 1, 1) + 0.5)
        self.fc = nn.Linear(CHANNELS, CLASSES)
        self.steps = tuple(steps)
        if hook is not None:
            self.conv.register_forward_hook(lambda module, args, output: HOOKS[hook](output))
        settle_(self, images(16, seed, SHAPE))

    def forward(self, x: Tensor) -> Tensor:
        values = [self.stem(x)]
        for step in self.steps:
            made = STEPS[step.name](self, values[step.reads % len(values)], values[step.other % len(values)])
            if made is not None:
                values.append(made)
        return self.fc((values[-1] + values[len(values) // 2]).mean((2, 3)))

    def extra_repr(self) -> str:
        return ", ".join(f"{step.name} {step.reads} {step.other}" for step in self.steps)


def _step(names: Sequence[str]) -> st.SearchStrategy[Step]:
    index = st.integers(0, 5)
    return st.builds(Step, st.sampled_from(names), index, index)


@st.composite
def random_styles(draw: st.DrawFn) -> RandomStyle:
    """Three to nine steps, now and then with one that must be refused, and a hook on the reused convolution."""
    usual = st.one_of(*(_step(list(part)) for part in (LAYERS, NEW, ALIASES, IN_PLACE, IN_PLACE)))
    steps = draw(st.lists(usual, min_size=3, max_size=9))
    if draw(st.integers(0, 15)) == 7:
        steps.insert(draw(st.integers(0, len(steps))), draw(_step(list(REFUSED))))
    hook = draw(st.sampled_from([None, None, *HOOKS]))
    return RandomStyle(steps, hook, draw(st.integers(0, 2**16)))
