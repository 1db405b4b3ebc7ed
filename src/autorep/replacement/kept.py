"""Torch's own call for every activation of the table (`autorep.activations`): what a kept element goes through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autorep.activations import ACTIVATIONS, Kind


def gelu_tanh(z: Tensor) -> Tensor:
    return F.gelu(z, approximate="tanh")


# Kind -> function of a tensor and the kind's arguments, in the table's order.
KEPT: dict[str, Callable[..., Tensor]] = {
    name: gelu_tanh if name == "gelu_tanh" else getattr(F, name, None) or getattr(torch, name) for name in ACTIVATIONS
}
MODULES: dict[type[nn.Module], Kind] = {getattr(nn, kind.module): kind for kind in ACTIVATIONS.values() if kind.module}


def _functions() -> dict[Callable[..., Any], tuple[str, bool]]:
    """Every function of torch that calls an activation -> (kind, in place?)."""
    found: dict[Callable[..., Any], tuple[str, bool]] = {}
    for name in ACTIVATIONS:
        for home in (F, torch):
            for spelling, in_place in ((name, False), (f"{name}_", True)):
                if hasattr(home, spelling):
                    found[getattr(home, spelling)] = name, in_place
    return found


FUNCTIONS = _functions()
METHODS: dict[str, tuple[str, bool]] = {
    spelling: (name, in_place)
    for name in ACTIVATIONS
    for spelling, in_place in ((name, False), (f"{name}_", True))
    if hasattr(Tensor, spelling)
}


def module_kind(module: nn.Module) -> tuple[str, tuple[float, ...]] | None:
    """Kind and arguments of a torch activation module, None for any other."""
    kind = MODULES.get(type(module))
    if kind is None:
        return None
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return "gelu_tanh", ()
    return kind.name, tuple(float(getattr(module, name)) for name, _ in kind.settings)


def call_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, tuple[float, ...]] | None:
    """Kind and arguments of a call of torch's function of that name; None when one of them is no plain number."""
    kind = ACTIVATIONS[name]
    if name == "gelu" and kwargs.get("approximate", "none") == "tanh":
        return "gelu_tanh", ()
    values = dict(zip((setting for setting, _ in kind.settings), args)) | kwargs
    chosen = [values.get(setting, default) for setting, default in kind.settings]
    if not all(isinstance(value, int | float) for value in chosen):
        return None
    return name, tuple(float(value) for value in chosen)
