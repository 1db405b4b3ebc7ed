"""From a trained torch module to a Program: trace, fold, give kinds, calibrate, choose widths."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from autorep.compiler.binary import whole_numbers
from autorep.compiler.draft import Draft
from autorep.compiler.export import plain_module
from autorep.compiler.fold import fold_affine
from autorep.compiler.guard import check_precision, check_same
from autorep.compiler.merge import merge_convolutions
from autorep.compiler.ranges import assume, calibrate, recalled
from autorep.compiler.trace import Problem, Traced, trace
from autorep.compiler.widths import FRACTIONS, assign_widths, headroom
from autorep.compiler.wires import assign_kinds
from autorep.errors import DataError, RangeError, TraceError, UnsupportedOpError
from autorep.modes import Program
from autorep.program.answer import feature_wire
from autorep.program.ir import Affine

Batches = Iterable[Any]
Normalization = tuple[Sequence[float], Sequence[float]]  # mean and std per channel
INPUT_REACH = 1.5  # clients may ask with values this many times larger than calibration showed


def compile_program(
    model: nn.Module,
    calibration_batches: Batches | torch.Tensor | np.ndarray,
    *,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    normalize: Normalization | None = None,
    margin: float = 4.0,
    outliers: float = 0.0,
    fractions: Sequence[int] = FRACTIONS,
    ranges: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Program:
    """Compile an evaluated model (replaced or plain) to a fixed-point Program.

    Arguments:
        calibration_batches: image tensors (N, ...), or (images, labels) pairs as data loaders give; one tensor is one
            batch. What the model will see in use; a few hundred images are enough.
        class_names: of the logits; of a model that returns several tensors, those of all of them, one after the other.
        normalize: (mean, std) per channel, to be folded into the program: the program then takes the images before
            normalisation, and so must the calibration batches.
        margin: every layer fits values this many times larger than calibration showed.
        outliers: share of the calibration images that may be set aside because they reach much further than the others
            (a few images through a network that was replaced without training); their like may be answered wrongly.
        fractions: fractional bits to try, best first.
        ranges: what `measure_ranges` found on images that are not at hand now; the batches then only serve to check
            that the program computes what the model does, so any few images will do.
        info: further public facts to record.

    A model that returns several tensors becomes a program that gives them in one row; `program.answer.split_outputs`
    takes it apart.

    Raises UnsupportedOpError listing everything that cannot be translated, TraceError, RangeError.
    """
    batches = list(_images(calibration_batches))
    if not batches:
        raise DataError("no calibration images; give at least one batch, better a few hundred images")
    network, example = plain_module(model), torch.from_numpy(batches[0])
    draft = _draft(network, example, normalize)
    measured = calibrate(draft, batches, outliers)
    with _evaluating(network):
        prepare = _normalization(normalize)
        check_same(network, draft, batches, prepare, measured, lambda: _traced(network, example))
    calibration = measured if ranges is None else recalled(draft, ranges)
    ops = assign_widths(draft, calibration, margin, fractions)
    features = feature_wire(ops)
    input_limit = INPUT_REACH * calibration.values[ops[0].name].largest
    facts = {
        **(info or {}),
        "name": name or type(model).__name__,
        "class_names": list(class_names) if class_names is not None else None,
        "normalize": [[float(v) for v in part] for part in normalize] if normalize is not None else None,
        "calibration_images": calibration.images,
        "calibration_outliers": calibration.left_out,
        "margin": margin,
        "input_range": [-input_limit, input_limit],
        "feature_energy": features.size * calibration.values[features.name].square,
        "output_limit": margin * calibration.values[ops[-1].name].largest,
        **({"outputs": draft.outputs} if draft.outputs else {}),
        "headroom": [asdict(row) for row in headroom(ops, calibration)],
    }
    program = Program(tuple(ops), draft.parameters, secrets.token_hex(16), facts)
    if ranges is not None:
        return program
    error, bound = check_precision(program, batches, measured)
    return replace(program, info={**facts, "fixed_error": error, "fixed_bound": bound})


def measure_ranges(
    model: nn.Module, calibration_batches: Batches | torch.Tensor | np.ndarray, normalize: Normalization | None = None
) -> dict[str, Any]:
    """How far every layer reaches on these images, as plain values that `compile_program(ranges=…)` takes later."""
    batches = list(_images(calibration_batches))
    if not batches:
        raise DataError("no calibration images; give at least one batch, better a few hundred images")
    return calibrate(_draft(plain_module(model), torch.from_numpy(batches[0]), normalize), batches).facts()


def sketch_program(model: nn.Module, example: torch.Tensor, largest: float = 16.0) -> Program:
    """The Program of a model that was never trained: every layer is taken to reach |value| = `largest`.

    Shapes, widths, rounds and bytes are those of a trained network of that range; the answers mean nothing.
    """
    draft = _draft(plain_module(model), example, None)
    return Program(tuple(assign_widths(draft, assume(draft, largest), margin=4.0)), draft.parameters)


def _draft(model: nn.Module, example: torch.Tensor, normalize: Normalization | None) -> Draft:
    """Traced, folded, with kinds; no widths yet."""
    draft = traced_draft(model, example)
    if normalize is not None:
        _insert_normalization(draft, *normalize)
    return lowered(draft)


def traced_draft(model: nn.Module, example: torch.Tensor) -> Draft:
    """What the model computes, operation by operation as it was written."""
    traced = _traced(model, example)
    if traced.problems:
        lines = "\n  ".join(map(str, traced.problems))
        raise UnsupportedOpError(f"{len(traced.problems)} operation(s) cannot be compiled:\n  {lines}")
    traced.draft.prune()
    return traced.draft


def lowered(draft: Draft) -> Draft:
    """Folded, merged, with kinds; no widths yet."""
    fold_affine(draft)
    merge_convolutions(draft)
    whole_numbers(draft)
    draft = assign_kinds(draft)
    for key in draft.parameters:  # copied, because weights that were not folded are still the model's own memory
        draft.parameters[key] = draft.parameters[key].astype(np.float32, order="C")
        if not np.isfinite(draft.parameters[key]).all():
            layer, _, parameter = key.rpartition(".")
            kind = type(draft.ops[layer]).__name__
            raise RangeError(f"layer {layer!r} ({kind}): its {parameter} has values that are not finite")
    return draft


def check(model: nn.Module, example: torch.Tensor | None = None) -> list[Problem]:
    """Every operation that cannot be compiled, at once; empty when the model is fine.

    Without an example input, one is guessed from the model's first convolution or linear layer.
    """
    model = plain_module(model)
    return _traced(model, _guess_input(model) if example is None else example).problems


def _traced(model: nn.Module, example: torch.Tensor) -> Traced:
    parameter = next(model.parameters(), None)
    if parameter is not None:
        example = example.to(parameter.device, parameter.dtype)
    with _evaluating(model):
        return trace(model, torch.cat([example, example])[:2])


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, every module's own mode restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _images(batches: Batches | torch.Tensor | np.ndarray) -> Iterator[np.ndarray]:
    """Every batch that is not empty, as float32; all of one image shape."""
    if isinstance(batches, torch.Tensor | np.ndarray):
        batches = [batches]
    shape: tuple[int, ...] | None = None
    for batch in batches:
        images = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if isinstance(images, torch.Tensor):
            images = images.detach().cpu().float().numpy()
        if not isinstance(images, np.ndarray):
            kind = "a dictionary" if isinstance(images, Mapping) else f"a {type(images).__name__}"
            raise DataError(f"a calibration batch is {kind}; give image tensors (N, ...) or (images, labels) pairs")
        if not len(images):
            continue
        shape = shape or images.shape[1:]
        if images.shape[1:] != shape:
            raise DataError(
                f"calibration images of shapes {shape} and {images.shape[1:]}; all must have the one shape that the "
                "program will take: resize or crop them"
            )
        yield np.asarray(images, np.float32)


def _guess_input(model: nn.Module) -> torch.Tensor:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            return torch.zeros(1, module.in_channels, 64, 64)
        if isinstance(module, nn.Linear):
            return torch.zeros(1, module.in_features)
    raise TraceError("cannot guess an input for this model; pass an example tensor")


def _normalization(normalize: Normalization | None) -> Callable[[np.ndarray], np.ndarray]:
    """What the program does to its images before the model's first layer."""
    if normalize is None:
        return lambda images: images

    def apply(images: np.ndarray) -> np.ndarray:
        wide = (-1,) + (1,) * (images.ndim - 2)
        mean, std = (np.asarray(part, np.float32).reshape(wide) for part in normalize)
        return (images - mean) / std

    return apply


def _insert_normalization(draft: Draft, mean: Sequence[float], std: Sequence[float]) -> None:
    """Put (x − mean) / std after the input; folding moves it into the first convolution."""
    first = next(iter(draft.ops.values()))
    channels = first.shape[0]
    scale = 1.0 / np.broadcast_to(np.asarray(std, np.float64), (channels,))
    shift = -np.broadcast_to(np.asarray(mean, np.float64), (channels,)) * scale
    rest = list(draft.ops.values())[1:]
    draft.ops = {first.name: first}
    common: dict[str, Any] = {"shape": first.shape, "kind": "sum", "bits": 0, "frac": 0}
    affine = draft.add(
        Affine(name="normalize", inputs=(first.name,), weight_frac=0, **common), weight=scale, bias=shift
    )
    for op in rest:
        inputs = tuple(affine.name if source == first.name else source for source in op.inputs)
        draft.ops[op.name] = replace(op, inputs=inputs)
