"""Finished models that ship with the package: autorep.zoo() lists them, load("cifar10-resnet20-relu3pct") loads one."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autorep.errors import CheckpointError
from autorep.settings import nearest

if TYPE_CHECKING:
    from autorep.training.compiled import SavedModel


def names() -> list[str]:
    """The models in the zoo."""
    return sorted(entry.name[:-5] for entry in resources.files("autorep.zoo").iterdir() if entry.name.endswith(".json"))


def catalogue() -> dict[str, dict[str, Any]]:
    """Name -> facts: network, data set, ReLUs kept and of how many, measured accuracies."""
    entries = {}
    for name in names():
        info = json.loads(resources.files("autorep.zoo").joinpath(f"{name}.json").read_text(encoding="utf-8"))
        shown = ("model", "data", "relus", "relus_total", "input_shape", "result", "private")
        entries[name] = {key: info[key] for key in shown if key in info}
    return entries


def load(name: str | Path) -> SavedModel:
    """A model by its zoo name, or from a saved model's file or run directory; in evaluation mode."""
    from autorep.models import is_own
    from autorep.training.saved import load_model

    if is_own(str(name)):
        raise CheckpointError(
            f"{name}: a network, not a saved model; train it (`autorep train --model {name}`) and give the run's "
            "directory, or compile it as it is (`autorep compile`, with --data)"
        )
    if Path(name).exists() or Path(name).suffix in (".json", ".safetensors"):
        return load_model(name)
    if str(name) not in names():
        raise CheckpointError(
            f"{name}: neither a saved model nor in the zoo; {nearest(str(name), names() or ['none'])}"
        )
    with resources.as_file(resources.files("autorep.zoo")) as folder:
        return load_model(folder / f"{name}.json")


def note(name: str | Path, **facts: Any) -> Path:
    """Put facts into the description of a saved model, or of one of the zoo; returns the file."""
    path = Path(str(resources.files("autorep.zoo"))) / f"{name}.json" if str(name) in names() else Path(name)
    path = (path / "model.json" if path.is_dir() else path).with_suffix(".json")
    info = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(info | facts, indent=2) + "\n", encoding="utf-8")
    return path


class _CallableModule(ModuleType):
    """Lets autorep.zoo() list the zoo, while autorep.zoo stays the module."""

    def __call__(self) -> dict[str, dict[str, Any]]:
        return catalogue()


sys.modules[__name__].__class__ = _CallableModule
