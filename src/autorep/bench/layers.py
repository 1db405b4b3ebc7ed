"""Online time of every operation, measured between two party processes over TLS on loopback."""

from __future__ import annotations

import statistics

import numpy as np

from autorep.bench.pair import Pair
from autorep.program import ir

WORDS = {
    "Conv": "convolution",
    "Linear": "linear",
    "Affine": "scale and shift",
    "Activation": "activation",
    "Sign": "activation",
    "Requantize": "requantise",
    "MaxPool": "max pooling",
    "Product": "product",
    "Input": "input",
}


def kind(op: ir.Op) -> str:
    """What people call an operation; those that only move or add numbers are one kind."""
    return WORDS.get(type(op).__name__, "other")


def layer_seconds(program: ir.Program, image: np.ndarray, repeats: int = 15) -> list[tuple[str, str, float]]:
    """(name, kind, median seconds at party 0, exchanges included) of every operation, for one image."""
    with Pair(program) as pair:
        runs = [pair.query(image).parties[0]["operations"] for _ in range(repeats)]
    return [(op.name, kind(op), statistics.median(run[op.name] for run in runs)) for op in program.ops]
