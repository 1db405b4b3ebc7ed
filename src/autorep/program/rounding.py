"""How far fixed point may be from float: a bound that follows from a program's scales, for given images.

The difference has two parts.

* What is rounded once, when the program is made: weights, polynomials' coefficients, and straight lines in place of a
  curve. It moves each image's answer by a fixed amount, which the float program with those numbers tells exactly.
* What every query rounds anew: the image, and each opened element to steps of u (2**-kept_frac where it is compared,
  2**-quad_frac inside a quadratic, 2**-frac after it and where a sum is opened). Such an error is without bias and
  spans one step, so its deviation counts as u/2 at most (Hoeffding's lemma), and no two depend on each other. Their
  effects on an answer add up as squares: σ² = Σ (u/2)²·(slope of the answer in that element)². The float program with
  errors of ±u/2 thrown in everywhere at random has exactly this σ, so a few such runs measure it.

An answer is further off than DEVIATIONS·σ beyond the first part with a probability below 2·exp(−DEVIATIONS²/2), were σ
known; 8 instead of the 6 that would do (3e-8) leave room for its being measured with PROBES runs. σ is to first order
in the errors, which is why it is measured with errors of their real size. Signs jump: with signs there is no bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autorep.program.execute import execute
from autorep.program.floating import apply_op, run_ops
from autorep.program.ir import Activation, Input, Op, Program, Requantize, Sign, decode

DEVIATIONS = 8.0
PROBES = 6


def rounding_bound(program: Program, images: np.ndarray) -> np.ndarray | None:
    """Largest |fixed − float| of every answer (N, *output shape); None for a program with signs."""
    if any(isinstance(op, Sign) for op in program.ops):
        return None
    lines, parameters = _rounded_once(program)
    exact = run_ops(program.ops, program.parameters, images)
    settled = run_ops(lines, parameters, images)
    generator = np.random.default_rng(0)
    squares = [np.square(_thrown(lines, parameters, images, generator) - settled) for _ in range(PROBES)]
    return np.abs(settled - exact) + DEVIATIONS * _deviation(np.mean(squares, axis=0))


def _rounded_once(program: Program) -> tuple[list[Op], dict[str, np.ndarray]]:
    """The operations with lines for curves, and the parameters as the ring has them."""
    lines = [replace(op, function="piecewise") if isinstance(op, Activation) else op for op in program.ops]
    parameters = {
        f"{op.name}.{name}": decode(program.encoded(op, name), 64, op.parameter_frac(name))
        for op in program.ops
        for name in op.parameter_names
        if f"{op.name}.{name}" in program.parameters
    }
    return lines, parameters


def _deviation(squares: np.ndarray) -> np.ndarray:
    """σ of every answer from few runs: an image's share times an answer's, no answer below the average one."""
    flat = squares.reshape(len(squares), -1)
    answers = flat.mean(axis=0)
    answers = np.maximum(answers, answers.mean())
    shares = (flat / np.maximum(answers, 1e-300)).mean(axis=1, keepdims=True)
    return np.sqrt(np.maximum(shares, 1.0) * answers).reshape(squares.shape)


def _thrown(
    ops: list[Op], parameters: Mapping[str, np.ndarray], images: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """A float run in which every rounding is an error of half a step up or down."""

    def moved(values: np.ndarray, step: np.ndarray | float) -> np.ndarray:
        return values + generator.choice((-0.5, 0.5), values.shape) * step

    def apply(op: Op, inputs: list[np.ndarray]) -> np.ndarray:
        if isinstance(op, Activation):
            inputs = [moved(inputs[0], _compared(op))]
        own = {name: parameters[key] for name in op.parameter_names if (key := f"{op.name}.{name}") in parameters}
        result = apply_op(op, inputs, own)
        if isinstance(op, Requantize):
            return moved(result, 2.0**-op.frac)
        return moved(result, _delivered(op)) if isinstance(op, Activation) and op.quad_count else result

    first = ops[0]
    assert isinstance(first, Input)
    return execute(ops, moved(np.asarray(images, np.float64), 2.0**-first.frac), apply)


def _compared(op: Activation) -> np.ndarray:
    """Steps of an activation's input."""
    steps = np.full(op.size, 2.0**-op.quad_frac)
    steps[op.kept] = 2.0**-op.kept_frac
    return steps.reshape(op.shape)


def _delivered(op: Activation) -> np.ndarray:
    """Steps of an activation's result: only quadratics are rounded a second time."""
    steps = np.full(op.size, 2.0**-op.frac)
    steps[op.kept] = 0.0
    return steps.reshape(op.shape)
