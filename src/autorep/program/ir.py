"""The Program: a flat list of typed operations that three interpreters (float, fixed, secure) read alike.

Two kinds of value flow between operations:

* a **wire** is a layer input with `frac` fractional bits. In secure mode both servers know X = x + mask and hold
  shares of the mask; everything that multiplies reads wires.
* a **sum** is a layer output before its activation, with more fractional bits. In secure mode it is additively
  shared and nobody knows anything about it; sums can only be added, pooled, reshaped and opened.

Linear operations and products turn wires into sums; activations and `Requantize` turn a sum into a wire.

The operations themselves (architecture, shapes, scales, positions of the kept ReLUs) are public. The numbers a model
owner wants to hide (weights, biases, polynomial coefficients) live apart, in `Program.parameters`; a server's copy of
the Program has none.

This module imports numpy only, so that clients and servers stay light.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np

from autorep import notebook
from autorep.errors import RangeError

Kind = Literal["wire", "sum"]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation; its result carries the operation's name.

    Attributes:
        name: unique; the dotted path of the user's module where there is one.
        inputs: names of the operations whose results it reads.
        shape: of the result, without the batch dimension.
        kind: whether the result is a wire or a sum.
        bits: the result is known modulo 2**bits.
        frac: fractional bits of the result.
    """

    name: str
    inputs: tuple[str, ...]
    shape: Shape
    kind: Kind
    bits: int
    frac: int

    parameter_names: ClassVar[tuple[str, ...]] = ()
    index_name: ClassVar[str | None] = None  # the attribute that is a list of positions, public and stored apart

    @property
    def size(self) -> int:
        """Elements of the result for one image."""
        return math.prod(self.shape)

    def parameter_frac(self, parameter: str) -> int:
        """Fractional bits of a parameter when it is written as a ring element."""
        raise KeyError(f"{type(self).__name__} {self.name!r} has no parameter {parameter!r}")


@dataclass(frozen=True, kw_only=True)
class Input(Op):
    """The client's image: a wire in the full 64-bit ring."""


@dataclass(frozen=True, kw_only=True)
class _Linear(Op):
    """What convolution, linear and affine share: y = W·x + bias, a sum of frac = input frac + weight_frac."""

    weight_frac: int
    parameter_names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def parameter_frac(self, parameter: str) -> int:
        return {"weight": self.weight_frac, "bias": self.frac}[parameter]


@dataclass(frozen=True, kw_only=True)
class Conv(_Linear):
    """Convolution. Parameters: weight (O, C/groups, kh, kw); bias (O,) or, per position, (O, H, W)."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


@dataclass(frozen=True, kw_only=True)
class Linear(_Linear):
    """Matrix product on a flat wire. Parameters: weight (O, F), bias (O,)."""


@dataclass(frozen=True, kw_only=True)
class Affine(_Linear):
    """Per-channel scale and shift (a batch norm that could not be folded). Parameters: weight (C,), bias (C,)."""


@dataclass(frozen=True, kw_only=True)
class Add(Op):
    """Sum of wires and sums, all brought to the result's frac by an exact left shift; local, always a sum."""


@dataclass(frozen=True, kw_only=True)
class SumPool(Op):
    """Sum over windows (an average pool whose factor was folded elsewhere); keeps the kind of its input."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Flatten(Op):
    """Reshape to the result's shape: one dimension, or back to (channels, 1, 1); keeps the kind of its input."""


@dataclass(frozen=True, kw_only=True)
class Concat(Op):
    """Concatenation along channels of inputs of one kind and frac."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gather(Op):
    """Elements of the inputs in any order, any number of times; local, for inputs of one kind and frac.

    index: for each element of the result its flat position in the inputs of one image, one input after the other;
        −1 for a zero.
    """

    index: np.ndarray = field(repr=False)
    index_name: ClassVar[str | None] = "index"

    def apply(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """The inputs (N, *shape) rearranged, whatever they stand for: numbers, masks or shares."""
        flat = [value.reshape(len(value), -1) for value in values]
        flat.append(np.zeros((len(values[0]), 1), values[0].dtype))  # where position −1 points
        return np.concatenate(flat, axis=1)[:, self.index].reshape(-1, *self.shape)


@dataclass(frozen=True, kw_only=True)
class Product(Op):
    """Element-wise product of two wires, the second broadcast over rows and columns where its sides are 1."""


@dataclass(frozen=True, kw_only=True)
class Requantize(Op):
    """A sum opened and shifted right by `shift` to a wire.

    One round when the sum is known modulo 2**(bits + shift) or more; otherwise the exact lifted truncation and a
    second opening.
    """

    shift: int
    open_bits: int  # ring of the first (or only) opening
    one_round: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Activation(Op):
    """Mixed activation of a sum: the elements in `kept` go through a piecewise-linear function, all others
    through their channel's quadratic a·y² + b·y + c.

    Attributes:
        open_bits: ring of opening A (the masked sum); |y| < 2**(open_bits - 2 - input frac).
        kept: sorted flat positions (channel, row, column) of one image that keep a comparison.
        knots, slopes: the piecewise-linear function is offset + Σ slopes[k]·relu(y − knots[k]); integers, knots with
            kept_frac and slopes with frac − kept_frac fractional bits, offset with frac. ReLU: knots (0,), slopes (1,).
        function, arguments: what the piecewise-linear function stands for, an entry of `autorep.activations`, so that
            `float` mode computes the true one; "piecewise" is nothing but its lines.
        kept_frac: fractional bits of y where it is compared.
        window: n, bits of the comparison: exact for |y − knot| < 2**(window − kept_frac).
        quad_frac: g, fractional bits of y inside the quadratic.
        lead_frac: f_a, fractional bits of a; b has f_a + g, c has f_a + 2g.
        Parameters (when some element is not kept): a, b, c of shape (C,).
    """

    open_bits: int
    in_frac: int
    kept: np.ndarray = field(repr=False)
    knots: tuple[int, ...] = (0,)
    slopes: tuple[int, ...] = (1,)
    offset: int = 0
    function: str = "piecewise"
    arguments: tuple[float, ...] = ()
    kept_frac: int = 16
    window: int = 22
    quad_frac: int = 12
    lead_frac: int = 12
    index_name: ClassVar[str | None] = "kept"
    parameter_names: ClassVar[tuple[str, ...]] = ("a", "b", "c")

    @property
    def quad_shift(self) -> int:
        """Right shift folded into opening B of the quadratics."""
        return self.lead_frac + 2 * self.quad_frac - self.frac

    @property
    def quad_open_bits(self) -> int:
        """Ring of opening B of the quadratics."""
        return self.bits + self.quad_shift

    @property
    def kept_count(self) -> int:
        return int(self.kept.size)

    @property
    def quad_count(self) -> int:
        return self.size - self.kept_count

    @cached_property
    def quad_index(self) -> np.ndarray:
        """Sorted flat positions that are not kept."""
        flags = np.ones(self.size, bool)
        flags[self.kept] = False
        return np.flatnonzero(flags)

    def parameter_frac(self, parameter: str) -> int:
        return self.lead_frac + {"a": 0, "b": 1, "c": 2}[parameter] * self.quad_frac


@dataclass(frozen=True, kw_only=True)
class Sign(Op):
    """1 where a sum is 0 or more, −1 elsewhere: the activation of a binary network.

    Attributes:
        open_bits: ring of opening A, as of an Activation.
        kept_frac: fractional bits of y where it is compared.
        window: n, bits of the comparison: exact for |y| < 2**(window − kept_frac).
    """

    open_bits: int
    in_frac: int
    kept_frac: int
    window: int


@dataclass(frozen=True, kw_only=True)
class MaxPool(Op):
    """Maximum over windows of a wire: a tournament of comparisons, ceil(log2(kernel area)) openings.

    window: n, bits of the comparison: exact while two candidates differ by less than 2**(window − frac).
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    window: int = 22

    def candidates(self, in_shape: Shape) -> np.ndarray:
        """Flat input position of every candidate: (kernel area, outputs of one image).

        A position in the padding is replaced by the nearest valid position of its window, which changes no maximum.
        """
        (channels, height, width), (_, out_height, out_width) = in_shape, self.shape
        rows = np.arange(out_height)[:, None] * self.stride[0] - self.padding[0] + np.arange(self.kernel[0])[None]
        cols = np.arange(out_width)[:, None] * self.stride[1] - self.padding[1] + np.arange(self.kernel[1])[None]
        rows, cols = rows.clip(0, height - 1), cols.clip(0, width - 1)
        plane = rows[:, None, :, None] * width + cols[None, :, None, :]  # (out row, column, kernel row, column)
        plane = plane.transpose(2, 3, 0, 1).reshape(self.kernel[0] * self.kernel[1], 1, -1)
        positions = plane + (np.arange(channels) * height * width)[None, :, None]
        return positions.reshape(plane.shape[0], -1)


@dataclass(frozen=True, kw_only=True)
class TopClasses(Op):
    """Positions of the largest values of a flat wire, best first, of equal ones the first: a sum without fraction.

    What is compared is x·2**bits − position, so that a value carries its position along; the winner modulo 2**bits says
    its position and nothing else. `shape` is (how many,); bits = 1 + those of the largest position.

    window: bits of a comparison: exact while two values differ by less than 2**(window − bits) units.
    """

    window: int

    @property
    def ring(self) -> int:
        """Bits in which values meet."""
        return self.window + 1


@dataclass(frozen=True, kw_only=True)
class WithinBound(Op):
    """1 where the sum of squares of a wire is at most `bound`, else 0: a sum of shape (1,).

    shift: the wire is shifted right by so much before it is squared; `bound` is in squares of the units that gives.
    """

    shift: int
    bound: int


OP_TYPES: dict[str, type[Op]] = {
    cls.__name__: cls
    for cls in (
        Input,
        Conv,
        Linear,
        Affine,
        Add,
        SumPool,
        Flatten,
        Concat,
        Gather,
        Product,
        Requantize,
        Activation,
        Sign,
        MaxPool,
        TopClasses,
        WithinBound,
    )
}


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """Operations in execution order (the first is the Input, the last gives the answer), and their parameters.

    Attributes:
        ops: the public part.
        parameters: "<op name>.<parameter>" -> float array; empty in a server's copy.
        model_id: 16 random bytes as hex, drawn when the model was compiled; binds the bundles of one model together.
        info: public facts for people and clients: class names, input normalisation, source, calibration ranges.
    """

    ops: tuple[Op, ...]
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    model_id: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {op.name: op for op in self.ops})

    def __repr__(self) -> str:
        return f"<Program {self._facts()}>"

    def _repr_html_(self) -> str:
        """For notebooks: every operation, and where in the picture an activation keeps its ReLUs."""
        rows = [
            (op.name, type(op).__name__, "×".join(map(str, op.shape)), f"{op.bits} · {op.frac}", *_kept_cells(op))
            for op in self.ops
        ]
        head = ("operation", "kind", "shape", "bits · fraction", "kept", "where")
        return notebook.panel("Program", self._facts(), notebook.table(head, rows, "lllrrl"))

    def _facts(self) -> str:
        shapes = ["×".join(map(str, op.shape)) for op in (self.input, self.output)]
        parameters = sum(value.size for value in self.parameters.values())
        held = f"{parameters:,} parameters" if parameters else "public part, no parameters"
        name = f"{self.info['name']}: " if self.info.get("name") else ""
        return f"{name}{shapes[0]} to {shapes[1]}, {len(self.ops)} operations, {self.relu_count:,} ReLUs kept, {held}"

    def __getitem__(self, name: str) -> Op:
        return self._by_name[name]  # type: ignore[attr-defined]  # set in __post_init__ of a frozen class

    @property
    def input(self) -> Op:
        return self.ops[0]

    @property
    def output(self) -> Op:
        return self.ops[-1]

    @property
    def relu_count(self) -> int:
        """Kept ReLUs, over all activations; gates (sigmoids), which no budget counts, are left out."""
        return sum(op.kept_count for op in self.ops if isinstance(op, Activation) and op.function != "sigmoid")

    def public(self) -> Self:
        """The same program without any parameter: what a server may see."""
        return dataclasses.replace(self, parameters={})

    def encoded(self, op: Op, parameter: str) -> np.ndarray:
        """A parameter as ring elements (uint64, two's complement), rounded to its fractional bits."""
        return encode(self.parameters[f"{op.name}.{parameter}"], op.parameter_frac(parameter))


P = TypeVar("P", bound=Program)  # of what makes another program of the same class


def _kept_cells(op: Op) -> tuple[str, str]:
    """How many elements of an activation are compared, and a picture of where."""
    if not isinstance(op, Activation):
        return "", ""
    flags = np.zeros(op.size)
    flags[op.kept] = 1.0
    where = notebook.map_picture(flags.reshape(op.shape).mean(0)) if len(op.shape) == 3 else ""
    return f"{op.kept_count:,} of {op.size:,}", where


def encode(values: np.ndarray | Sequence[float] | float, frac: int) -> np.ndarray:
    """Real numbers to ring elements mod 2**64 with `frac` fractional bits, rounded to nearest."""
    scaled = np.rint(np.asarray(values, dtype=np.float64) * 2.0**frac)
    return scaled.astype(np.int64).view(np.uint64)


def encode_input(values: np.ndarray, frac: int, limits: Sequence[float] | None) -> np.ndarray:
    """A client's images as ring elements, refused where they leave the program's published input range (low, high).

    Beyond it the layers' widths need not suffice and the answer would be wrong without a sign of it. A program that
    publishes no range takes whatever its ring can hold.
    """
    values = np.asarray(values, np.float64)
    low, high = limits or (-(2.0 ** (62 - frac)), 2.0 ** (62 - frac))
    wrong = ~((values >= low) & (values <= high))  # catches NaN as well
    if wrong.any():
        raise RangeError(
            f"input: {np.count_nonzero(wrong)} of {wrong.size} values lie outside the range {low:g} to {high:g} that "
            f"this program was made for, the first is {values[wrong][0]:g}; scale images as for training"
        )
    return encode(values, frac)


def decode(values: np.ndarray, bits: int, frac: int) -> np.ndarray:
    """Ring elements mod 2**bits, read as signed, to real numbers."""
    return signed(values, bits) / 2.0**frac


def signed(values: np.ndarray, bits: int) -> np.ndarray:
    """Two's-complement value (int64) of ring elements mod 2**bits."""
    shift = np.int64(64 - bits)
    return (values.astype(np.uint64) << np.uint64(shift)).view(np.int64) >> shift
