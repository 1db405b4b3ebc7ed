"""AutoReP: replace ReLUs automatically, then run the network privately between two servers.

Names are loaded when first used, so that a client or a server that imports autorep does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autorep import errors
from autorep.errors import AutorepError

if TYPE_CHECKING:
    from autorep import data, models, training, zoo
    from autorep.compiler.compile import check, compile_program
    from autorep.program.ir import Program
    from autorep.replacement import Replacement, count_relus, replace_activations_
    from autorep.service.client import Client
    from autorep.zoo import load

__version__ = "0.1.0"

__all__ = [
    "AutorepError",
    "Client",
    "Program",
    "Replacement",
    "__version__",
    "check",
    "compile_program",
    "count_relus",
    "data",
    "errors",
    "load",
    "models",
    "replace_activations_",
    "training",
    "zoo",
]

_HOMES = {
    "Client": "autorep.service.client",
    "Program": "autorep.program.ir",
    "Replacement": "autorep.replacement",
    "check": "autorep.compiler.compile",
    "compile_program": "autorep.compiler.compile",
    "count_relus": "autorep.replacement",
    "load": "autorep.zoo",
    "replace_activations_": "autorep.replacement",
}
_PACKAGES = ("data", "models", "training", "zoo")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"autorep.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'autorep' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
