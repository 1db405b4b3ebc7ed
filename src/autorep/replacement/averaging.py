"""The running average of a model's weights over training steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential running average of a model's floating-point state (weights, coefficients, statistics).

    It holds on to the model's tensors, which may change in place but must stay the model's own.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.count = 0
        self.current = averaged_state(model)
        self.state = _copied(self.current)

    @torch.no_grad()
    def update_(self) -> None:
        """Move towards the present weights; early steps weigh more, so the start is forgotten quickly."""
        self.count += 1
        decay = min(self.decay, self.count / (10 + self.count))
        torch._foreach_lerp_([self.state[name] for name in self.current], list(self.current.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with averaged weights inside, its own again afterwards."""
        own = _copied(self.current)
        self._assign_(self.state)
        try:
            yield
        finally:
            self._assign_(own)

    def assign_(self) -> None:
        """Give the model the averaged weights for good."""
        self._assign_(self.state)

    @torch.no_grad()
    def _assign_(self, state: dict[str, Tensor]) -> None:
        for name, value in self.current.items():
            value.copy_(state[name])


def averaged_state(model: nn.Module) -> dict[str, Tensor]:
    """What is averaged: every floating-point tensor of the state."""
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}
