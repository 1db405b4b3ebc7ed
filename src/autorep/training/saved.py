"""A finished model on disk: <name>.safetensors with the tensors, <name>.json with what rebuilds and describes it.

No pickle. Masks are stored as packed bits; auxiliary parameters, which a finished model no longer needs, are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autorep import models
from autorep.errors import CheckpointError
from autorep.replacement import MaskedActivation, attach, replace_activations_
from autorep.training.compiled import SavedModel
from autorep.training.runs import load_tensors, save_tensors

FORMAT = 1
NEEDED = ("model", "num_classes", "input_shape", "data", "classes", "mean", "std")


def save_model(path: str | Path, model: nn.Module, info: dict[str, Any]) -> None:
    """Write <path>.safetensors and <path>.json; `info` needs what NEEDED lists."""
    path = Path(path)
    if missing := [key for key in NEEDED if key not in info]:
        raise CheckpointError(
            f"{path}: save_model needs {', '.join(missing)} in `info`, or nobody can load the model again; "
            'model is a name from autorep.models or "FILE.py:FUNCTION"'
        )
    document = {"format": FORMAT, **info}
    if models.is_own(info["model"]):
        from autorep.models.own import resolved

        document["model"] = resolved(info["model"])
    sites: dict[str, MaskedActivation] = {}
    if _is_replaced(model):
        replacement = attach(model)
        sites = replacement.sites
        document |= {
            "replacement": replacement.describe(),
            "relus": replacement.count(),
            "relus_total": replacement.total,
            "layers": replacement.table(),
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path.with_suffix(".safetensors"), _pack(model.state_dict(), sites), {"format": str(FORMAT)})
    path.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def load_model(path: str | Path) -> SavedModel:
    """Rebuild a saved model from either of its two files, or from the run directory that holds them."""
    path = Path(path)
    if any((path / inside).exists() for inside in ("manifest.json", "public", "party0", "party1")):
        raise CheckpointError(
            f"{path}: a compiled program (`autorep compile` wrote it), not a saved model; give it to `serve --local`, "
            "`predict --model`, `cost --program` or `compare`, and here the model or run that it was compiled from"
        )
    if path.is_dir():
        path = path / "model.json"
    elif path.exists() and path.suffix not in (".json", ".safetensors"):
        raise CheckpointError(
            f"{path}: not a saved model, which is NAME.json beside NAME.safetensors; a network is named "
            "FILE.py:FUNCTION, and weights of another program go in with `train --weights` or `replace --weights`"
        )
    description = path.with_suffix(".json")
    try:
        info = json.loads(description.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{description}: no such file; a saved model is NAME.json beside NAME.safetensors"
        ) from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{description}: not valid JSON ({error})") from None
    if info.get("format") != FORMAT:
        raise CheckpointError(f"{description}: format {info.get('format')!r}; this version reads format {FORMAT}")
    model = models.create(info["model"], info["num_classes"], info["input_shape"][-1])
    replacement = None
    if "replacement" in info:
        example = torch.zeros(1, *info["input_shape"])
        replacement = replace_activations_(model, example, **info["replacement"])
    tensors, _ = load_tensors(path.with_suffix(".safetensors"))
    models.load_weights_(model, _unpack(tensors, model.state_dict()))
    return SavedModel(model.eval(), replacement, info)


def _is_replaced(model: nn.Module) -> bool:
    return any(isinstance(module, MaskedActivation) for module in model.modules())


def _pack(state: dict[str, Tensor], sites: dict[str, MaskedActivation]) -> dict[str, Tensor]:
    """Masks as bits, eight a byte; no aux."""
    packed = dict(state)
    for name in sites:
        del packed[f"{name}.aux"]
        packed[f"{name}.mask"] = _to_bits(state[f"{name}.mask"])
    return packed


def _unpack(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    whole = dict(tensors)
    for name, value in expected.items():
        if name.endswith(".mask") and name in tensors:
            whole[name] = _from_bits(tensors[name], value)
        elif name.endswith(".aux") and name not in tensors:
            whole[name] = value
    return whole


def _to_bits(mask: Tensor) -> Tensor:
    flat = mask.reshape(-1).to(torch.uint8)
    flat = torch.cat([flat, flat.new_zeros(-len(flat) % 8)]).reshape(-1, 8)
    return (flat << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _from_bits(bits: Tensor, like: Tensor) -> Tensor:
    if bits.numel() != (like.numel() + 7) // 8:
        return bits  # load_weights_ reports the shape by name
    flat = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return flat.reshape(-1)[: like.numel()].reshape(like.shape).to(like.dtype)
