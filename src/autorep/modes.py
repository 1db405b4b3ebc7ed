"""A Program in its three modes, as people hold it: run it in one, or see where two of them part, layer by layer.

It stands above the program and the engine, because the third mode is the real protocol between two parties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autorep.errors import ConfigError
from autorep.mpc.local import run_secure
from autorep.program import files, ir
from autorep.program.fixed import FixedProgram, run_fixed
from autorep.program.floating import run_float
from autorep.settings import nearest

_RUNNERS: dict[str, Callable[..., Any]] = {"float": run_float, "fixed": run_fixed, "secure": run_secure}


class Program(ir.Program):
    """The program of `ir` that also runs itself, and goes to disk and back."""

    def run(self, x: np.ndarray, mode: Literal["float", "fixed", "secure"] = "float", **options: Any) -> np.ndarray:
        """Logits for a batch of inputs (N, *input shape), in float, in exact fixed point, or between two parties.

        Options: float: dtype; fixed: rounding; secure: those of `mpc.local.run_secure` (trace=True returns more).
        """
        if mode not in _RUNNERS:
            raise ConfigError(f"mode {mode!r}; valid: float, fixed, secure")
        return _RUNNERS[mode](self, x, **options)

    def save(self, directory: str | Path) -> None:
        """Write this program, parameters included, to a directory that `Program.load` and every command read."""
        files.save(self, directory)

    @staticmethod
    def load(directory: str | Path) -> Program:
        """The model owner's program from the directory `save` or `autorep compile` wrote."""
        read = files.load(directory)
        return Program(read.ops, read.parameters, read.model_id, read.info)


@dataclass(frozen=True)
class LayerDifference:
    """One operation: largest |difference| between the modes, largest |value| in the first of them."""

    layer: str
    operation: str
    difference: float
    largest: float

    @property
    def relative(self) -> float:
        """Difference in units of the layer's largest value, or of 1 when that is smaller."""
        return self.difference / max(1.0, self.largest)


@dataclass(frozen=True)
class Differences:
    """All layers in order, and the first whose relative difference exceeds the tolerance (None when all are fine)."""

    modes: tuple[str, str]
    tolerance: float
    layers: tuple[LayerDifference, ...]

    @property
    def first_bad(self) -> LayerDifference | None:
        return next((layer for layer in self.layers if not layer.relative <= self.tolerance), None)


def compare(
    program: ir.Program, x: np.ndarray, mode1: str = "float", mode2: str = "fixed", tolerance: float = 0.01
) -> Differences:
    """Run a batch in two modes and compare every operation's result."""
    first, second = values(program, x, mode1), values(program, x, mode2)
    layers = []
    for op in program.ops:
        difference = float(np.abs(first[op.name] - second[op.name]).max())
        largest = float(np.abs(first[op.name]).max())
        layers.append(LayerDifference(op.name, type(op).__name__, difference, largest))
    return Differences((mode1, mode2), tolerance, tuple(layers))


def values(program: ir.Program, x: np.ndarray, mode: str) -> dict[str, np.ndarray]:
    """Every operation's result as real numbers."""
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r}; {nearest(mode, list(MODES))}")
    return MODES[mode](program, x)


def _float_values(program: ir.Program, x: np.ndarray) -> dict[str, np.ndarray]:
    seen: dict[str, np.ndarray] = {}

    def observe(op: ir.Op, value: np.ndarray) -> None:
        seen[op.name] = value.astype(np.float32)

    run_float(program, x, observe)
    return seen


def _fixed_values(program: ir.Program, x: np.ndarray) -> dict[str, np.ndarray]:
    seen: dict[str, np.ndarray] = {}

    def observe(op: ir.Op, value: np.ndarray) -> None:
        seen[op.name] = ir.decode(value, op.bits, op.frac).astype(np.float32)

    FixedProgram(program).run(x, None, observe)
    return seen


def _secure_values(program: ir.Program, x: np.ndarray) -> dict[str, np.ndarray]:
    _, seen = run_secure(program, x, trace=True)
    return seen


MODES: dict[str, Callable[[ir.Program, np.ndarray], dict[str, np.ndarray]]] = {
    "float": _float_values,
    "fixed": _fixed_values,
    "secure": _secure_values,
}
