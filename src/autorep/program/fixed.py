"""`fixed` mode: the exact integers that the two servers compute, given the low bits of their masks.

Values are uint64 words; the result of an operation is read modulo 2**op.bits. The only freedom the protocol leaves is
rounding: a right shift by s after opening y + r gives (y + r mod 2**s) >> s, so the mask's low s bits decide whether
the value is rounded up. A `Rounding` supplies them: seeded (as random as the protocol's), to nearest, or, in the
engine's tests, the real masks' low bits, whereupon `fixed` equals `secure` in every bit.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import numpy as np

from autorep._native import PackedConv, PackedMatmul
from autorep.program.execute import Observe, check_input, execute, in_chunks
from autorep.program.floating import per_channel
from autorep.program.ir import (
    Activation,
    Add,
    Affine,
    Concat,
    Conv,
    Flatten,
    Linear,
    MaxPool,
    Op,
    Product,
    Program,
    Requantize,
    SumPool,
    decode,
    encode,
    signed,
)
from autorep.program.windows import windows


class Rounding(Protocol):
    """Where the low bits of the masks come from."""

    def low(self, name: str, step: str, shape: tuple[int, int], shift: np.ndarray | int) -> np.ndarray:
        """Words (uint64) of `shape` = (batch, elements), each in [0, 2**shift).

        Arguments:
            name: the operation's.
            step: "a" for the first opening (all elements), "b" for opening B (only the quadratics, in index order).
            shift: one for all elements, or one per element of an image.
        """
        ...


class SeededRounding:
    """Stochastic rounding as in the protocol, reproducible: one public generator per operation and opening."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._generators: dict[tuple[str, str], np.random.Generator] = {}

    def low(self, name: str, step: str, shape: tuple[int, int], shift: np.ndarray | int) -> np.ndarray:
        key = (name, step)
        if key not in self._generators:
            label = zlib.crc32(f"{name}/{step}".encode())
            self._generators[key] = np.random.default_rng((self._seed, label))
        words = self._generators[key].integers(0, 1 << 64, shape, dtype=np.uint64)
        return words & ((np.uint64(1) << np.asarray(shift, np.uint64)) - np.uint64(1))


class NearestRounding:
    """Round half up, without randomness."""

    def low(self, name: str, step: str, shape: tuple[int, int], shift: np.ndarray | int) -> np.ndarray:
        half = (np.uint64(1) << np.asarray(shift, np.uint64)) >> np.uint64(1)
        return np.broadcast_to(half, shape)


def run_fixed(
    program: Program, x: np.ndarray, rounding: Rounding | None = None, observe: Observe | None = None
) -> np.ndarray:
    """Logits of a batch (N, *input shape); `observe` sees every operation's ring elements, the batch in one piece."""
    fixed = FixedProgram(program)
    check_input(program, x)
    rounding = rounding or SeededRounding()

    def run(part: np.ndarray) -> np.ndarray:
        return decode(fixed.run(part, rounding, observe), program.output.bits, program.output.frac)

    return run(x) if observe else in_chunks(program, x, run)


class FixedProgram:
    """A Program with its parameters encoded and its convolutions packed once, for many batches."""

    def __init__(self, program: Program) -> None:
        check_input(program, np.empty((0, *program.input.shape)))
        self._program = program
        self._parameters = {
            f"{op.name}.{name}": program.encoded(op, name)
            for op in program.ops
            for name in op.parameter_names
            if f"{op.name}.{name}" in program.parameters
        }
        self._plans = {op.name: self._plan(op) for op in program.ops if isinstance(op, Conv | Linear)}

    def run(self, x: np.ndarray, rounding: Rounding | None = None, observe: Observe | None = None) -> np.ndarray:
        """Ring elements of the answer, modulo 2**bits of the last operation."""
        check_input(self._program, x)
        rounding = rounding or SeededRounding()
        first = self._program.input

        def apply(op: Op, inputs: list[np.ndarray]) -> np.ndarray:
            return _reduce(self._apply(op, inputs, rounding), op.bits)

        return execute(self._program.ops, _reduce(encode(x, first.frac), first.bits), apply, observe)

    def _plan(self, op: Conv | Linear) -> PackedConv | PackedMatmul:
        weight = self._parameters[f"{op.name}.weight"]
        if isinstance(op, Linear):
            return PackedMatmul(weight, bits=op.bits)
        channels, rows, columns = self._program[op.inputs[0]].shape
        return PackedConv(
            weight, (channels, rows, columns), op.stride, op.padding, op.dilation, op.groups, bits=op.bits
        )

    def _apply(self, op: Op, inputs: list[np.ndarray], rounding: Rounding) -> np.ndarray:
        x = inputs[0]
        match op:
            case Conv() | Linear():
                y = self._plans[op.name].run(np.ascontiguousarray(x))
                return y + per_channel(self._parameters[f"{op.name}.bias"], op.shape)
            case Affine():
                weight, bias = (self._parameters[f"{op.name}.{name}"] for name in ("weight", "bias"))
                return x * per_channel(weight, op.shape) + per_channel(bias, op.shape)
            case Add():
                shifts = [np.uint64(op.frac - self._program[name].frac) for name in op.inputs]
                return sum((value << shift for value, shift in zip(inputs[1:], shifts[1:])), start=x << shifts[0])
            case Product():
                return x * inputs[1]
            case SumPool():
                return windows(x, op.kernel, op.stride, op.padding).sum(axis=(4, 5), dtype=np.uint64)
            case MaxPool():
                lowest = np.iinfo(np.int64).min
                values = signed(x, self._program[op.inputs[0]].bits)
                best = windows(values, op.kernel, op.stride, op.padding, fill=lowest).max(axis=(4, 5))
                return best.view(np.uint64)
            case Flatten():
                return x.reshape(len(x), *op.shape)
            case Concat():
                return np.concatenate(inputs, axis=1)
            case Requantize():
                return self._requantize(op, x, rounding)
            case Activation():
                return self._activation(op, x, rounding)
        raise TypeError(f"no fixed-point rule for {type(op).__name__} {op.name!r}")

    def _requantize(self, op: Requantize, x: np.ndarray, rounding: Rounding) -> np.ndarray:
        y = signed(x, op.open_bits).reshape(len(x), op.size)
        return _shift(y, rounding.low(op.name, "a", y.shape, op.shift), op.shift).reshape(x.shape)

    def _activation(self, op: Activation, x: np.ndarray, rounding: Rounding) -> np.ndarray:
        y = signed(x, op.open_bits).reshape(len(x), op.size)
        shift = np.full(op.size, op.in_frac - op.quad_frac)
        shift[op.kept] = op.in_frac - op.kept_frac
        t = _shift(y, rounding.low(op.name, "a", y.shape, shift), shift)
        result = np.empty(y.shape, np.uint64)
        if op.kept_count:
            result[:, op.kept] = _piecewise(op, t[:, op.kept].view(np.int64))
        if op.quad_count:
            index = op.quad_index
            z = self._quadratic(op, t[:, index], index)
            low = rounding.low(op.name, "b", z.shape, op.quad_shift)
            result[:, index] = (z + low) >> np.uint64(op.quad_shift)
        return result.reshape(x.shape)

    def _quadratic(self, op: Activation, t: np.ndarray, index: np.ndarray) -> np.ndarray:
        channel = index // (op.size // op.shape[0])
        a, b, c = (self._parameters[f"{op.name}.{name}"][channel] for name in op.parameter_names)
        return (a * t + b) * t + c


def _reduce(words: np.ndarray, bits: int) -> np.ndarray:
    return words & np.uint64((1 << bits) - 1)


def _shift(y: np.ndarray, low: np.ndarray, shift: np.ndarray | int) -> np.ndarray:
    return ((y + low.view(np.int64)) >> np.asarray(shift, np.int64)).view(np.uint64)


def _piecewise(op: Activation, t: np.ndarray) -> np.ndarray:
    result = np.full(t.shape, op.offset, np.int64)
    for knot, slope in zip(op.knots, op.slopes):
        result += slope * np.maximum(t - knot, 0)
    return result.view(np.uint64)
