"""AutoReP: replace ReLUs automatically, then run the network privately between two servers.

Names are loaded when first used, so that a client or a server needs no torch (`pip install autorep[train]` brings it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorep import errors
from autorep.errors import AutorepError
from autorep.lazy import lazily

if TYPE_CHECKING:
    from autorep import data, models, training, zoo
    from autorep.compiler.compile import check, compile_program
    from autorep.modes import Program
    from autorep.replacement import Replacement, count_relus, replace_activations_
    from autorep.service.async_client import AsyncClient
    from autorep.service.client import Client
    from autorep.zoo import load

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
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

__getattr__ = lazily(
    __name__,
    {
        "AsyncClient": "autorep.service.async_client",
        "Client": "autorep.service.client",
        "Program": "autorep.modes",
        "Replacement": "autorep.replacement",
        "check": "autorep.compiler.compile",
        "compile_program": "autorep.compiler.compile",
        "count_relus": "autorep.replacement",
        "data": "autorep.data",
        "load": "autorep.zoo",
        "models": "autorep.models",
        "replace_activations_": "autorep.replacement",
        "training": "autorep.training",
        "zoo": "autorep.zoo",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
