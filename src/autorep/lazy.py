"""Names that are imported when they are first used, so that whoever needs no torch need not have it installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

# a package that may be missing -> the extra that brings it
EXTRAS = {
    "torch": "train",
    "starlette": "serve",
    "uvicorn": "serve",
    "httpx": "serve",
    "prometheus_client": "serve",
    "PIL": "serve",
    "matplotlib": "report",
    "tensorboard": "tensorboard",
}


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: takes each name from the module that `homes` says, when it is first asked for.

    A home that ends with the name itself, such as data -> autorep.data, is the module and not a name inside it.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {', '.join(homes)}")
        home = homes[name]
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(missing(error, f"{package}.{name}"), name=error.name) from error
        return module if home == f"{package}.{name}" else getattr(module, name)

    return find


def missing(error: ModuleNotFoundError, what: str) -> str:
    """Which extra to install when a package is not there; the error's own words when it belongs to none."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return str(error)
    return f"{what} needs {package}, which is not installed: pip install 'autorep[{EXTRAS[package]}]'"
