"""A network of one's own, named by where it is: FILE.py:FUNCTION, the FILE.pt2 of `torch.export.save`, or FILE.onnx.

FUNCTION returns a torch module. If it takes an argument, it is given the number of classes (as `num_classes` where it
has a parameter of that name). Whoever names a file runs the code in it, as `python FILE.py` would.
"""

from __future__ import annotations

import inspect
import re
import runpy
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autorep.errors import ConfigError
from autorep.models.onnx_file import load_onnx

USUAL_SIZE = 32


def resolved(name: str) -> str:
    """The same name with an absolute path, so that a finished run still finds the file from another folder."""
    file, mark, function = name.partition(".py:")
    return str(Path(name).resolve()) if not mark else f"{Path(file).resolve()}{mark}{function}"


def build(name: str, num_classes: int | None = None) -> nn.Module:
    """Make the network; random weights are drawn from torch's generator as in any constructor."""
    if name.endswith(".pt2"):
        return _exported(Path(name))
    if name.endswith(".onnx"):
        return load_onnx(Path(name))[0]
    make = _function(name)
    arguments = _arguments(make, num_classes, name)
    try:
        module = make(*arguments)
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{name}: cannot be called to make a network: {_where(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name}: returned a {type(module).__name__}, not a torch module")
    return module


def facts(name: str) -> tuple[int, int, int, tuple[str, ...]]:
    """Channels of its input, a usual image size, its classes and stages, read off its layers and their names."""
    if name.endswith(".onnx"):
        return _onnx_facts(Path(name))
    module = build(name)
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    if not layers:
        return 3, USUAL_SIZE, 10, ()
    first, last = layers[0], layers[-1]
    channels = first.in_channels if isinstance(first, nn.Conv2d) else 1
    classes = last.out_features if isinstance(last, nn.Linear) else last.out_channels
    return channels, USUAL_SIZE, classes, stages(module)


def stages(module: nn.Module) -> tuple[str, ...]:
    """layer1, layer2, …; where there are none, the parts of `features`."""
    features = getattr(module, "features", None)
    parts = features.named_children() if isinstance(features, nn.Sequential) else ()
    layers = tuple(name for name, _ in module.named_children() if re.fullmatch(r"layer\d+", name))
    return layers or tuple(f"features.{name}" for name, _ in parts)


def _function(name: str) -> Callable[..., Any]:
    file, _, function = name.rpartition(":")
    try:
        names = runpy.run_path(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); name a model FILE.py:FUNCTION") from None
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{file}: fails when Python runs it: {_where(error)}") from error
    make = names.get(function)
    if not callable(make):
        found = ", ".join(sorted(key for key, value in names.items() if callable(value) and not key.startswith("_")))
        raise ConfigError(f"{file}: no function {function!r}; it has {found or 'none'}")
    return make


def _where(error: Exception) -> str:
    """An error of the user's code with its place, as a traceback ends."""
    lines = traceback.format_exception_only(error)
    if not isinstance(error, SyntaxError) and (frames := traceback.extract_tb(error.__traceback__)):
        return f"{lines[-1].strip()} (line {frames[-1].lineno} of {frames[-1].filename})"
    return " ".join(line.strip() for line in lines)


def _arguments(make: Callable[..., Any], num_classes: int | None, name: str) -> list[Any]:
    """The number of classes, where the function wants one."""
    needed = [
        p
        for p in inspect.signature(make).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(needed) > 1:
        wanted = ", ".join(p.name for p in needed)
        raise ConfigError(f"{name}: wants {wanted}; give it one parameter, the number of classes, or none")
    takes_classes = needed or "num_classes" in inspect.signature(make).parameters
    if takes_classes and (num_classes is not None or needed):
        return [10 if num_classes is None else num_classes]
    return []


def _onnx_facts(path: Path) -> tuple[int, int, int, tuple[str, ...]]:
    network, shape = load_onnx(path)
    channels, *sides = shape or (3,)
    with torch.no_grad():
        answer = network(torch.zeros(1, channels or 3, *(side or USUAL_SIZE for side in sides)))
    size, classes = (sides[-1] if sides else 0) or USUAL_SIZE, answer.shape[-1] if torch.is_tensor(answer) else 0
    return channels or 3, size, classes, ()


def _exported(path: Path) -> nn.Module:
    try:
        return torch.export.load(path).module()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `torch.export.save` writes such files") from None
    except (RuntimeError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: not a saved torch.export program ({error})") from None
