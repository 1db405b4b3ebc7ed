"""A network by name as a Program, to be counted: nothing is trained or measured."""

from __future__ import annotations

import torch

from autorep import models
from autorep.bench.networks import KINDS, spread_
from autorep.compiler.compile import sketch_program
from autorep.errors import BudgetError
from autorep.program.ir import Program
from autorep.replacement import count_relus, replace_activations_


def sketch(
    network: str, image_size: int | None = None, relus: int | None = None, classes: int | None = None
) -> Program:
    """A network by name with random weights and widths for assumed ranges, keeping `relus` ReLUs spread evenly."""
    spec = models.spec(network)
    size = image_size or spec.image_size
    model = models.create(network, classes, size).eval()
    example = torch.zeros(2, spec.channels, size, size)
    total = count_relus(model, example, KINDS)["total"]
    if relus is not None:
        if not 0 <= relus <= total:
            raise BudgetError(f"{network} at {size}×{size} has {total:,} ReLUs; cannot keep {relus:,}")
        spread_(replace_activations_(model, example, kinds=KINDS), relus)
    return sketch_program(model, example)
