"""Load public weights into a network by their own names, strictly and without pickle of classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from autorep.errors import CheckpointError

_SHOWN = 4


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a .safetensors file, or of a .pth/.pt state dict (read with weights_only)."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such weights file; give a .safetensors, .pth or .pt file")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not a complete safetensors file ({error})") from None
    import pickle

    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{path}: not a plain PyTorch state dict ({error})") from None
    if isinstance(tensors, dict) and isinstance(tensors.get("state_dict"), dict):
        tensors = tensors["state_dict"]
    if not isinstance(tensors, dict) or not all(torch.is_tensor(t) for t in tensors.values()):
        raise CheckpointError(f"{path}: expected a mapping of names to tensors (a state dict)")
    return tensors


def load_weights_(
    model: nn.Module, source: str | Path | Mapping[str, torch.Tensor], new_head: bool = False
) -> nn.Module:
    """Copy weights into `model`; every name and shape must match.

    Counts of batches that batch norms have seen may be missing, as in old checkpoints: evaluation does not read them.

    Arguments:
        new_head: leave the last linear layer as it is where the weights have one of another number of classes.

    Raises CheckpointError that lists the first missing, unexpected and wrongly shaped names.
    """
    where = source if isinstance(source, str | Path) else "weights"
    tensors = dict(read_tensors(source) if isinstance(source, str | Path) else source)
    own = model.state_dict()
    if new_head:
        tensors.update(_other_head(model, own, tensors))
    for name in own:
        if name.endswith(".num_batches_tracked"):
            tensors.setdefault(name, own[name])
    missing = [name for name in own if name not in tensors]
    unexpected = [name for name in tensors if name not in own]
    shapes = [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    problems = [
        f"{len(items)} {kind}: {', '.join(items[:_SHOWN])}{' …' if len(items) > _SHOWN else ''}"
        for kind, items in (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", shapes))
        if items
    ]
    if problems:
        raise CheckpointError(f"{where} does not fit {type(model).__name__}: " + "; ".join(problems))
    model.load_state_dict(tensors, strict=True)
    return model


def _other_head(
    model: nn.Module, own: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The model's own last layer, where the weights have one of the same inputs for another number of classes."""
    layers = [f"{name}." for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    head = {name: value for name, value in own.items() if layers and name.startswith(layers[-1])}
    others = {name: tensors[name].shape for name in head if name in tensors}
    same_inputs = len(others) == len(head) and all(others[name][1:] == head[name].shape[1:] for name in head)
    return head if same_inputs and any(others[name] != head[name].shape for name in head) else {}
