"""The teacher: the all-ReLU network, frozen, batch norm folded away; and how far a student's features are from its."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class FeatureTap:
    """Keeps the outputs of some named modules from the last forward of a model."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._seen: dict[str, Tensor] = {}
        for name in self.names:
            model.get_submodule(name).register_forward_hook(self._keep(name))

    def take(self) -> list[Tensor]:
        """The features of the last forward, which are forgotten here so that their memory is freed."""
        features = [self._seen.pop(name) for name in self.names]
        self._seen.clear()
        return features

    def _keep(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._seen[name] = output

        return hook


class Teacher:
    """A frozen copy of a network that gives its logits and its features at the ends of its stages."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.model = fold_batch_norm(model).requires_grad_(False)
        self.tap = FeatureTap(self.model, names)

    def answers(self, x: Tensor) -> Tensor:
        """The logits alone."""
        return self(x)[0]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        logits = self.model(x)
        return logits, self.tap.take()


def fold_batch_norm(model: nn.Module) -> nn.Module:
    """An evaluation-mode copy in which every batch norm that directly follows a convolution is part of it.

    A teacher has fixed statistics, so this changes nothing but rounding and saves a third of its time.
    """
    model = copy.deepcopy(model).eval()
    graph = torch.fx.symbolic_trace(model).graph
    calls = [node for node in graph.nodes if node.op == "call_module"]
    uses = {name: [node.target for node in calls].count(name) for name in {node.target for node in calls}}
    for node in calls:
        before = node.args[0]
        if not isinstance(before, torch.fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        norm_name, conv_name = str(node.target), str(before.target)
        norm, conv = model.get_submodule(norm_name), model.get_submodule(conv_name)
        once = uses[norm_name] == uses[conv_name] == 1
        if once and type(conv) is nn.Conv2d and isinstance(norm, nn.BatchNorm2d):
            model.set_submodule(conv_name, fuse_conv_bn_eval(conv, norm))
            model.set_submodule(norm_name, nn.Identity())
    return model


def feature_distance(features: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Mean over stages of the squared distance to the teacher's features, relative to their own mean square."""
    parts = [_Distance.apply(own.float(), other.float()) for own, other in zip(features, teacher, strict=True)]
    return torch.stack(parts).mean()


class _Distance(torch.autograd.Function):
    """‖own − other‖² / ‖other‖²; written out, so that large features are passed over half as often as by autograd."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, other: Tensor) -> Tensor:
        ctx.difference = own - other
        ctx.scale = torch.linalg.vector_norm(other).square().clamp_min(1e-12 * other.numel()).reciprocal()
        return torch.linalg.vector_norm(ctx.difference).square() * ctx.scale

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.difference * (2 * ctx.scale * gradient), None
