"""Averages taken at the end of training: of the weights over steps, and of batch-norm statistics over images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

STATISTICS = ("running_mean", "running_var")


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

    @torch.no_grad()
    def _assign_(self, state: dict[str, Tensor]) -> None:
        for name, value in self.current.items():
            value.copy_(state[name])


def averaged_state(model: nn.Module) -> dict[str, Tensor]:
    """What is averaged: every floating-point tensor of the state."""
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


@torch.no_grad()
def reestimate_batch_norm_(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace every batch norm's running statistics by the median over these batches of images.

    A median, because one image that outgrows a chain of quadratics spoils its whole batch, and with it any average.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) and m.track_running_stats]
    if not norms:
        return
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.momentum = 1.0  # the running statistics become the batch's
        norm.train()
    seen: list[list[Tensor]] = []
    for images in batches:
        for norm in norms:
            norm.reset_running_stats()
        model(images)
        seen.append([torch.stack([getattr(norm, name).clone() for name in STATISTICS]) for norm in norms])
    for norm, momentum, statistics in zip(norms, momenta, zip(*seen)):
        for name, value in zip(STATISTICS, torch.stack(statistics).nanmedian(0).values):
            getattr(norm, name).copy_(value)
        norm.momentum = momentum
    for module, mode in modes.items():
        module.training = mode
