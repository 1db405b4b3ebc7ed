"""Comparisons of max pooling: no budget counts them, but two servers pay for each as for a kept ReLU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.module_tracker import ModuleTracker

_WINDOWS = (F.max_pool2d, torch.max_pool2d, F.max_pool2d_with_indices, F.max_pool1d, torch.max_pool1d)
_ADAPTIVE = (F.adaptive_max_pool2d, F.adaptive_max_pool2d_with_indices)


@dataclass(frozen=True)
class MaxPoolCall:
    """One call of max pooling: the module that makes it, the shape of one image's result, comparisons for it."""

    name: str
    shape: tuple[int, ...]
    comparisons: int


@torch.no_grad()
def max_pools(model: nn.Module, inputs: tuple[Any, ...]) -> list[MaxPoolCall]:
    """Every call of max pooling when the model runs on these inputs; k candidates take k − 1 comparisons."""
    with _Watch() as watch, watch.tracker:
        model(*inputs)
    return watch.found


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = ModuleTracker()
        self.found: list[MaxPoolCall] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if func in (*_WINDOWS, *_ADAPTIVE):
            pooled: Tensor = result[0] if isinstance(result, tuple) else result
            shape = pooled.shape[1:]
            if func in _ADAPTIVE:  # windows side by side
                comparisons = args[0][0].numel() - shape.numel()
            else:
                kernel = given["kernel_size"] if "kernel_size" in given else args[1]
                sides = [kernel] * (len(shape) - 1) if isinstance(kernel, int) else kernel
                comparisons = shape.numel() * (math.prod(sides) - 1)
            name = max(self.tracker.parents, key=len).partition(".")[2] or "max pooling"
            self.found.append(MaxPoolCall(name, tuple(shape), comparisons))
        return result
