"""`fixed` mode: the exact integers that the two servers compute, given their masks, in range and out of it.

Values are uint64 words; the result of an operation is read modulo 2**op.bits. The only freedom the protocol leaves is
the mask r of an opening. While |y| < 2**(open_bits − 2), its low bits decide whether a shifted value is rounded up, and
nothing else depends on it. A larger value comes out as itself or off by 2**open_bits, as r will have it; a comparison
sees its value modulo 2**(window + 1) only; both are computed here as the servers do. A `Rounding` supplies the masks:
seeded (as random as the protocol's), to nearest, or, in the engine's tests, the real ones, whereupon `fixed` equals
`secure` in every bit, whatever the input.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import numpy as np

from autorep._native import PackedConv, PackedMatmul
from autorep.program import ir
from autorep.program.execute import Observe, check_input, execute, in_chunks
from autorep.program.floating import per_channel
from autorep.program.tournament import tournament
from autorep.program.windows import windows


class Rounding(Protocol):
    """Where the masks come from."""

    def mask(self, name: str, step: str, shape: tuple[int, int], bits: int, shift: np.ndarray | int) -> np.ndarray:
        """Words (uint64) of `shape` = (batch, elements), each in [0, 2**bits).

        Arguments:
            name: the operation's.
            step: "a" for the first opening (all elements), "b" for opening B (only the quadratics, in index order),
                "wire" for the wire that the operation reads.
            shift: by which the opened value will be shifted; one for all elements, or one per element of an image.
        """
        ...


class SeededRounding:
    """Stochastic rounding as in the protocol, reproducible: one public generator per operation and opening."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._generators: dict[tuple[str, str], np.random.Generator] = {}

    def mask(self, name: str, step: str, shape: tuple[int, int], bits: int, shift: np.ndarray | int) -> np.ndarray:
        key = (name, step)
        if key not in self._generators:
            label = zlib.crc32(f"{name}/{step}".encode())
            self._generators[key] = np.random.default_rng((self._seed, label))
        return _reduce(self._generators[key].integers(0, 1 << 64, shape, dtype=np.uint64), bits)


class NearestRounding:
    """Round half up, without randomness."""

    def mask(self, name: str, step: str, shape: tuple[int, int], bits: int, shift: np.ndarray | int) -> np.ndarray:
        half = (np.uint64(1) << np.asarray(shift, np.uint64)) >> np.uint64(1)
        return np.broadcast_to(half, shape)


def run_fixed(
    program: ir.Program, x: np.ndarray, rounding: Rounding | None = None, observe: Observe | None = None
) -> np.ndarray:
    """Logits of a batch (N, *input shape); `observe` sees every operation's ring elements, the batch in one piece."""
    fixed = FixedProgram(program)
    check_input(program, x)
    rounding = rounding or SeededRounding()

    def run(part: np.ndarray) -> np.ndarray:
        return ir.decode(fixed.run(part, rounding, observe), program.output.bits, program.output.frac)

    return run(x) if observe else in_chunks(program, x, run)


class FixedProgram:
    """A Program with its parameters encoded and its convolutions packed once, for many batches."""

    def __init__(self, program: ir.Program) -> None:
        check_input(program, np.empty((0, *program.input.shape)))
        self._program = program
        self._parameters = {
            f"{op.name}.{name}": program.encoded(op, name)
            for op in program.ops
            for name in op.parameter_names
            if f"{op.name}.{name}" in program.parameters
        }
        self._plans = {op.name: self._plan(op) for op in program.ops if isinstance(op, ir.Conv | ir.Linear)}

    def run(self, x: np.ndarray, rounding: Rounding | None = None, observe: Observe | None = None) -> np.ndarray:
        """Ring elements of the answer, modulo 2**bits of the last operation."""
        check_input(self._program, x)
        rounding = rounding or SeededRounding()
        first = self._program.input

        def apply(op: ir.Op, inputs: list[np.ndarray]) -> np.ndarray:
            return _reduce(self._apply(op, inputs, rounding), op.bits)

        return execute(self._program.ops, _reduce(ir.encode(x, first.frac), first.bits), apply, observe)

    def _plan(self, op: ir.Conv | ir.Linear) -> PackedConv | PackedMatmul:
        weight = self._parameters[f"{op.name}.weight"]
        if isinstance(op, ir.Linear):
            return PackedMatmul(weight, bits=op.bits)
        channels, rows, columns = self._program[op.inputs[0]].shape
        return PackedConv(
            weight, (channels, rows, columns), op.stride, op.padding, op.dilation, op.groups, bits=op.bits
        )

    def _apply(self, op: ir.Op, inputs: list[np.ndarray], rounding: Rounding) -> np.ndarray:
        x = inputs[0]
        match op:
            case ir.Conv() | ir.Linear():
                y = self._plans[op.name].run(np.ascontiguousarray(x))
                return y + per_channel(self._parameters[f"{op.name}.bias"], op.shape)
            case ir.Affine():
                weight, bias = (self._parameters[f"{op.name}.{name}"] for name in ("weight", "bias"))
                return x * per_channel(weight, op.shape) + per_channel(bias, op.shape)
            case ir.Add():
                shifts = [np.uint64(op.frac - self._program[name].frac) for name in op.inputs]
                return sum((value << shift for value, shift in zip(inputs[1:], shifts[1:])), start=x << shifts[0])
            case ir.Product():
                return x * inputs[1]
            case ir.SumPool():
                return windows(x, op.kernel, op.stride, op.padding).sum(axis=(4, 5), dtype=np.uint64)
            case ir.MaxPool():
                return _tournament(op, x)
            case ir.Flatten():
                return x.reshape(len(x), *op.shape)
            case ir.Concat():
                return np.concatenate(inputs, axis=1)
            case ir.Gather():
                return op.apply(inputs)
            case ir.Requantize():
                return self._requantize(op, x, rounding)
            case ir.Activation():
                return self._activation(op, x, rounding)
            case ir.Sign():
                return self._sign(op, x, rounding)
            case ir.TopClasses():
                return _top_classes(op, x)
            case ir.WithinBound():
                return self._within_bound(op, x, rounding)
        raise TypeError(f"no fixed-point rule for {type(op).__name__} {op.name!r}")

    def _requantize(self, op: ir.Requantize, x: np.ndarray, rounding: Rounding) -> np.ndarray:
        y = x.reshape(len(x), op.size)
        mask = rounding.mask(op.name, "a", y.shape, op.open_bits, op.shift)
        return _open(y, mask, op.open_bits, op.shift).reshape(x.shape)

    def _sign(self, op: ir.Sign, x: np.ndarray, rounding: Rounding) -> np.ndarray:
        y, shift = x.reshape(len(x), op.size), op.in_frac - op.kept_frac
        t = _open(y, rounding.mask(op.name, "a", y.shape, op.open_bits, shift), op.open_bits, shift)
        negative = (t >> np.uint64(op.window)) & np.uint64(1)
        return ((np.uint64(1) - np.uint64(2) * negative) << np.uint64(op.frac)).reshape(x.shape)

    def _activation(self, op: ir.Activation, x: np.ndarray, rounding: Rounding) -> np.ndarray:
        y = x.reshape(len(x), op.size)
        shift = np.full(op.size, op.in_frac - op.quad_frac, np.uint64)
        shift[op.kept] = op.in_frac - op.kept_frac
        t = _open(y, rounding.mask(op.name, "a", y.shape, op.open_bits, shift), op.open_bits, shift)
        result = np.empty(y.shape, np.uint64)
        if op.kept_count:
            result[:, op.kept] = _piecewise(op, t[:, op.kept])
        if op.quad_count:
            index = op.quad_index
            z = self._quadratic(op, t[:, index], index)
            mask = rounding.mask(op.name, "b", z.shape, op.quad_open_bits, op.quad_shift)
            result[:, index] = (z + _reduce(mask, op.quad_shift)) >> np.uint64(op.quad_shift)
        return result.reshape(x.shape)

    def _within_bound(self, op: ir.WithinBound, x: np.ndarray, rounding: Rounding) -> np.ndarray:
        """[0 ≤ Q ≤ bound], Q the sum of squares in the ring that the shift leaves, read as signed."""
        y, bits = x.reshape(len(x), -1), self._program[op.inputs[0]].bits
        mask = rounding.mask(op.name, "wire", y.shape, bits, op.shift)
        y = (y + _reduce(mask, op.shift)) >> np.uint64(op.shift)
        missing = _word(op.bound) - (y * y).sum(axis=1, keepdims=True)

        def reached(t: np.ndarray) -> np.ndarray:
            """[t ≥ 0], as a difference of two ReLUs."""
            window = bits - op.shift - 1
            return _relu(t + np.uint64(1), window) - _relu(t, window)

        return (reached(missing) - reached(missing - _word(op.bound + 1))) << np.uint64(op.frac)

    def _quadratic(self, op: ir.Activation, t: np.ndarray, index: np.ndarray) -> np.ndarray:
        channel = index // (op.size // op.shape[0])
        a, b, c = (self._parameters[f"{op.name}.{name}"][channel] for name in op.parameter_names)
        return (a * t + b) * t + c


def _reduce(words: np.ndarray, bits: int) -> np.ndarray:
    return words & np.uint64((1 << bits) - 1)


def _open(y: np.ndarray, r: np.ndarray, bits: int, shift: np.ndarray | int) -> np.ndarray:
    """y >> shift as the servers get it from y + r opened modulo 2**bits; exact up to rounding for |y| < 2**(bits − 2).

    With v = y + 2**(bits − 2): the wrap of v + r is told by the top bits of r and of the sum, which is right while v
    is below 2**(bits − 1).
    """
    one, by = np.uint64(1), np.asarray(shift, np.uint64)
    opened = _reduce(y + np.uint64(1 << (bits - 2)) + r, bits)
    top = np.uint64(bits - 1)
    wrapped = (one - (opened >> top)) & (r >> top)
    offset = np.uint64(1 << (bits - 2)) >> by
    return (opened >> by) - offset - (r >> by) + _left(wrapped, np.uint64(bits) - by)


def _left(words: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """words · 2**shift modulo 2**64, also for a shift of 64."""
    return np.where(shift < 64, words << (shift & np.uint64(63)), np.uint64(0))


def _relu(t: np.ndarray, window: int) -> np.ndarray:
    """t where bit `window` of t is 0, else 0: right for |t| < 2**window, read as signed."""
    return t * (np.uint64(1) - ((t >> np.uint64(window)) & np.uint64(1)))


def _piecewise(op: ir.Activation, t: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.full(t.shape, op.offset, np.int64).view(np.uint64)
    for knot, slope in zip(op.knots, op.slopes):
        result += _word(slope) * _relu(t - _word(knot), op.window)
    return result


def _tournament(op: ir.MaxPool, x: np.ndarray) -> np.ndarray:
    """max(a, b) = b + relu(a − b), in the order in which the servers let candidates meet."""
    columns = x.reshape(len(x), -1)[:, op.candidates(x.shape[1:])].transpose(1, 0, 2)
    while (pairs := len(columns) // 2) > 0:
        left, right, rest = np.split(columns, (pairs, 2 * pairs))
        columns = np.concatenate([right + _relu(left - right, op.window), rest])
    return columns[0].reshape(len(x), *op.shape)


def _top_classes(op: ir.TopClasses, x: np.ndarray) -> np.ndarray:
    """The matches in the order in which the servers play them; the smaller of two is what their sum leaves."""
    played = tournament(x.shape[1], op.size)
    places = (x << np.uint64(op.bits)) - np.arange(x.shape[1], dtype=np.uint64)
    for first, second in played.layers:
        left, right = places[:, first], places[:, second]
        places[:, first] = right + _relu(left - right, op.window)
        places[:, second] = left + right - places[:, first]
    return np.uint64(0) - places[:, played.best]


def _word(value: int) -> np.uint64:
    return np.uint64(value % (1 << 64))
