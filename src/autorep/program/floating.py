"""`float` mode: the Program in ordinary floating point, equal to the torch model it was compiled from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autorep.activations import ACTIVATIONS
from autorep.program import ir
from autorep.program.execute import Observe, check_input, execute, in_chunks
from autorep.program.windows import Convolve, convolution, windows


def run_float(
    program: ir.Program, x: np.ndarray, observe: Observe | None = None, dtype: type = np.float64
) -> np.ndarray:
    """Logits of a batch (N, *input shape); with `observe` in one piece, so that it sees whole results."""
    check_input(program, x)

    def run(part: np.ndarray) -> np.ndarray:
        return run_ops(program.ops, program.parameters, part, observe, dtype)

    return run(x) if observe else in_chunks(program, x, run)


def run_ops(
    ops: Sequence[ir.Op],
    parameters: Mapping[str, np.ndarray],
    x: np.ndarray,
    observe: Observe | None = None,
    dtype: type = np.float64,
    convolve: Convolve = convolution,
) -> np.ndarray:
    """The same for a list of operations whose widths and scales may not be chosen yet."""
    fracs = {op.name: op.frac for op in ops}

    def apply(op: ir.Op, inputs: list[np.ndarray]) -> np.ndarray:
        if isinstance(op, ir.WithinBound):
            return _within_bound(op, inputs[0], fracs[op.inputs[0]])
        own = {name: parameters.get(f"{op.name}.{name}") for name in op.parameter_names}
        own_values: dict[str, np.ndarray] = {k: v.astype(dtype, copy=False) for k, v in own.items() if v is not None}
        return apply_op(op, inputs, own_values, convolve)

    return execute(ops, np.asarray(x, dtype), apply, observe)


def per_channel(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A vector over channels, or an array per position, so that it broadcasts against (N, *shape)."""
    return values.reshape(values.shape + (1,) * (len(shape) - values.ndim))


def apply_op(
    op: ir.Op, inputs: list[np.ndarray], own: Mapping[str, np.ndarray], convolve: Convolve = convolution
) -> np.ndarray:
    """One operation on its inputs, with its parameters by name."""
    x = inputs[0]
    match op:
        case ir.Conv():
            y = convolve(x, own["weight"], op.stride, op.padding, op.dilation, op.groups)
            return y + per_channel(own["bias"], op.shape)
        case ir.Linear():
            return x @ own["weight"].T + own["bias"]
        case ir.Affine():
            return x * per_channel(own["weight"], op.shape) + per_channel(own["bias"], op.shape)
        case ir.Add():
            return sum(inputs[1:], start=x)
        case ir.Product():
            return x * inputs[1]
        case ir.SumPool():
            return windows(x, op.kernel, op.stride, op.padding).sum(axis=(4, 5))
        case ir.MaxPool():
            return windows(x, op.kernel, op.stride, op.padding, fill=-np.inf).max(axis=(4, 5))
        case ir.Flatten():
            return x.reshape(len(x), *op.shape)
        case ir.Concat():
            return np.concatenate(inputs, axis=1)
        case ir.Gather():
            return op.apply(inputs)
        case ir.Requantize():
            return x
        case ir.Activation():
            return _activation(op, x, own)
        case ir.Sign():
            return np.where(x >= 0, x.dtype.type(1), x.dtype.type(-1))
        case ir.TopClasses():
            return np.argsort(-x, axis=1, kind="stable")[:, : op.size].astype(x.dtype)
    raise TypeError(f"no float rule for {type(op).__name__} {op.name!r}")


def _within_bound(op: ir.WithinBound, x: np.ndarray, frac: int) -> np.ndarray:
    squares = np.square(x.reshape(len(x), -1)).sum(axis=1, keepdims=True)
    return (squares <= op.bound * 4.0 ** (op.shift - frac)).astype(x.dtype)


def _activation(op: ir.Activation, x: np.ndarray, own: Mapping[str, np.ndarray]) -> np.ndarray:
    flat = x.reshape(len(x), op.size)
    if op.quad_count == 0:
        return _piecewise(op, flat).reshape(x.shape)
    result = _quadratic(x, op.shape, own).reshape(flat.shape)
    result[:, op.kept] = _piecewise(op, flat[:, op.kept])
    return result.reshape(x.shape)


def _quadratic(x: np.ndarray, shape: tuple[int, ...], own: Mapping[str, np.ndarray]) -> np.ndarray:
    a, b, c = (per_channel(own[name], shape) for name in ("a", "b", "c"))
    return (a * x + b) * x + c


def _piecewise(op: ir.Activation, y: np.ndarray) -> np.ndarray:
    if op.function != "piecewise":
        return ACTIVATIONS[op.function].function(y, *op.arguments)
    knot_scale, slope_scale = 2.0**-op.kept_frac, 2.0 ** (op.kept_frac - op.frac)
    result = np.full_like(y, op.offset * 2.0**-op.frac)
    for knot, slope in zip(op.knots, op.slopes):
        result += slope * slope_scale * np.maximum(y - knot * knot_scale, 0)
    return result
