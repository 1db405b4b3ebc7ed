"""Programs to measure: networks with random weights whose activations are as tame as a trained network's.

Latency, bytes and rounds depend on shapes, widths and the positions of the kept ReLUs, not on what the weights say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from autorep import _native, models
from autorep.compiler.compile import compile_program
from autorep.errors import BudgetError, ConfigError
from autorep.modes import Program
from autorep.program.ir import Activation
from autorep.replacement import replace_activations_
from autorep.replacement.api import Replacement

KINDS = ("relu", "relu6", "silu")
CALIBRATION_BATCHES = 3
CURVATURE = 0.1  # of DaPa's: untrained quadratics square their outliers layer after layer until nothing fits


def random_images(count: int, channels: int, size: int, seed: int = 0) -> torch.Tensor:
    """Normalised images: smooth noise, standard deviation near 1."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, max(size // 4, 1), max(size // 4, 1), generator=generator)
    return nn.functional.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False) * 1.5


def build_program(
    network: str, image_size: int | None = None, relus: int | None = None, seed: int = 0, lines: Collection[str] = ()
) -> Program:
    """A network by name, compiled, that keeps exactly `relus` ReLUs, in every layer the same share.

    Args:
        network: a name of `autorep.models`.
        image_size: rows and columns of the input; None takes the network's usual size.
        relus: ReLUs to keep; None keeps all of them.
        lines: sites whose activations are straight lines; the others keep the ReLUs.
    """
    spec = models.spec(network)
    size = image_size or spec.image_size
    if size < 8:
        raise ConfigError(f"image size {size}: the networks need at least 8")
    torch.manual_seed(seed)
    return compile_random(models.create(network, image_size=size), network, (spec.channels, size), relus, seed, lines)


def at_levels(
    cases: Iterable[tuple[str, int | None]], levels: Iterable[str]
) -> Iterator[tuple[Program, dict[str, Any]]]:
    """The program of every network and ReLU count at every instruction-set level, and what its row begins with."""
    for network, relus in cases:
        program = build_program(network, relus=relus)
        for level in levels or (_native.simd(),):
            with at_level(level):
                size, kept = program.input.shape[-1], program.relu_count
                yield program, {"network": network, "image_size": size, "relus": kept, "simd": level}


@contextlib.contextmanager
def at_level(level: str) -> Iterator[None]:
    """This process, and those it starts, compute at an instruction-set level."""
    before = os.environ.get("AUTOREP_SIMD")
    os.environ["AUTOREP_SIMD"] = level
    _native.set_simd(level)
    try:
        yield
    finally:
        _native.set_simd("auto")
        os.environ.pop("AUTOREP_SIMD")
        if before is not None:
            os.environ["AUTOREP_SIMD"] = before


def compile_random(
    model: nn.Module,
    name: str,
    image: tuple[int, int],
    relus: int | None = None,
    seed: int = 0,
    lines: Collection[str] = (),
) -> Program:
    """Compile a freshly made model for images of (channels, size); its activations are replaced in place."""
    channels, size = image
    batch = 16 if size <= 64 else 4
    batches = [random_images(batch, channels, size, seed + index) for index in range(CALIBRATION_BATCHES)]
    _settle_batch_norms_(model, batches)
    model.eval()
    replacement = replace_activations_(model, batches[0][:2], kinds=KINDS)
    replacement.calibrate_(model, batches, curve=CURVATURE)
    spread_(replacement, relus, seed, lines)
    _settle_batch_norms_(model, batches)
    model.eval()
    return compile_program(model, [images.numpy() for images in batches], name=name)


def keep_relus(program: Program, relus: int) -> Program:
    """The same program with another number of kept ReLUs, spread alike; every width and scale stays.

    Only for programs whose activations all have quadratics, so each was compiled with some elements replaced.
    """
    layers = [op for op in program.ops if isinstance(op, Activation) and op.function == "piecewise"]
    total = sum(op.size for op in layers)
    if not 0 <= relus <= total:
        raise BudgetError(f"this program has 0 to {total} ReLUs to keep, not {relus}")
    ends = [round(relus * end / total) for end in np.cumsum([op.size for op in layers])]
    kept = {op.name: end - start for op, start, end in zip(layers, [0, *ends], ends)}
    ops = []
    for op in program.ops:
        if isinstance(op, Activation) and op.name in kept:
            index = np.linspace(0, op.size, kept[op.name], endpoint=False).astype(np.int64)
            op = dataclasses.replace(op, kept=index)
        ops.append(op)
    full = {op.name for op in ops if isinstance(op, Activation) and not op.quad_count}  # these have no quadratics
    parameters = {key: value for key, value in program.parameters.items() if key.rpartition(".")[0] not in full}
    return dataclasses.replace(program, ops=tuple(ops), parameters=parameters)


@torch.no_grad()
def spread_(replacement: Replacement, relus: int | None, seed: int = 0, lines: Collection[str] = ()) -> None:
    """Keep so many elements (None: all), the same share of every layer, at positions a seeded shuffle chooses.

    Sites named in `lines` become straight lines and keep none.
    """
    if unknown := sorted(set(lines) - set(replacement.sites)):
        raise ConfigError(f"lines {', '.join(unknown)}: the network has {', '.join(replacement.sites)}")
    most = replacement.total - sum(replacement.sites[line].mask.numel() for line in lines)
    if relus is not None and not 0 <= relus <= most:
        raise BudgetError(f"the network has {most:,} ReLUs; cannot keep {relus:,}")
    for line in lines:
        replacement.sites[line].straighten_()
    generator = torch.Generator().manual_seed(seed)
    scores = {}
    for name, site in replacement.sites.items():
        count = site.mask.numel()
        order = torch.randperm(count, generator=generator)
        scores[name] = ((order + 0.5) / count).reshape(site.mask.shape) - float(name in lines)
    replacement.start_from_(scores)
    replacement.settle_(most if relus is None else relus)


@torch.no_grad()
def _settle_batch_norms_(model: nn.Module, batches: list[torch.Tensor]) -> None:
    """Batch statistics become the running ones, as after training."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
    model.train()
    for images in batches:
        model(images)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def random_inputs(program: Program, batch: int, seed: int = 100) -> np.ndarray:
    """Images for one query, drawn like those of `build_program`, within what the program takes."""
    channels, size, _ = program.input.shape
    return random_images(batch, channels, size, seed).numpy().clip(*program.info["input_range"])
