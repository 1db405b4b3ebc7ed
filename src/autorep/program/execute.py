"""The walk through a Program that the float and fixed interpreters share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autorep.errors import ConfigError
from autorep.program.ir import Op, Program

Observe = Callable[[Op, np.ndarray], None]

_CHUNK_ELEMENTS = 1 << 22  # of the largest result held for one chunk of images


def execute(
    ops: Sequence[Op],
    first: np.ndarray,
    apply: Callable[[Op, list[np.ndarray]], np.ndarray],
    observe: Observe | None = None,
) -> np.ndarray:
    """Apply every operation in order and return the last result; a value is dropped after its last reader.

    Arguments:
        first: the value of the Input.
        observe: called with every operation and its result, in order.
    """
    last_reader = {name: op.name for op in ops for name in op.inputs}
    values = {ops[0].name: first}
    if observe:
        observe(ops[0], first)
    for op in ops[1:]:
        result = apply(op, [values[name] for name in op.inputs])
        if observe:
            observe(op, result)
        values[op.name] = result
        for name in set(op.inputs):
            if last_reader[name] == op.name:
                del values[name]
    return values[ops[-1].name]


def check_input(program: Program, x: np.ndarray) -> None:
    """Refuse a program without parameters and an input of another shape, by name."""
    if not program.parameters and any(op.parameter_names for op in program.ops):
        raise ConfigError(
            "this program has no parameters (it is a server's public copy): float and fixed mode need the model "
            "owner's program; load it with autorep.program.files.load from the directory that `compile` wrote"
        )
    if x.ndim != len(program.input.shape) + 1 or tuple(x.shape[1:]) != program.input.shape:
        raise ConfigError(
            f"input of shape {tuple(x.shape)}: the program expects (N, {', '.join(map(str, program.input.shape))})"
        )


def in_chunks(program: Program, x: np.ndarray, run: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Run a batch of any length in parts whose results fit in memory."""
    step = max(1, _CHUNK_ELEMENTS // max(op.size for op in program.ops))
    parts = [run(x[start : start + step]) for start in range(0, len(x), step)]
    return np.concatenate(parts) if parts else np.empty((0, *program.output.shape))
