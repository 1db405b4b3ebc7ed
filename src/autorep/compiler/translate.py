"""How ATen calls become operations of the Program: the translator that the rules write with.

A rule is a function named after the ATen call it translates, with that call's arguments; `rules` finds it. Live
arguments are computed from the input, everything else is constant. A rule returns Live values or raises Unsupported
with a sentence saying what to use instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autorep.compiler.draft import DRAFT_FRAC, Draft
from autorep.compiler.live import Live, Unsupported, move, moved_constants, per_image
from autorep.program.ir import Activation, Affine, Concat, Flatten, Gather, Op

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}  # ATen name -> rule


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the ATen names it translates."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Translator:
    """Appends to `draft` what one call does.

    Attributes:
        batch: images that the model was exported with.
        path: name for the operations of the call being translated.
        wanted: shape of its result, batch included.
        sizes: elements of every operation's result for the whole batch.
    """

    def __init__(self, draft: Draft, batch: int) -> None:
        self.draft, self.batch, self.path = draft, batch, ""
        self.wanted: tuple[int, ...] = ()
        self.sizes: dict[str, int] = {}
        self._placed: dict[int, tuple[Live, str]] = {}

    def append(self, cls: type[Op], inputs: Sequence[Live], shape: Sequence[int], **fields: Any) -> Live:
        """Add an operation whose result has this shape (without the batch); arrays among the fields are parameters."""
        parameters = {key: fields.pop(key) for key in cls.parameter_names if key in fields}
        common: dict[str, Any] = {"name": self.path, "kind": "sum", "bits": 0, "frac": 0}
        names = tuple(self.place(live) for live in inputs)
        op = self.draft.add(cls(**{**common, **fields}, inputs=names, shape=tuple(shape)), **parameters)
        return self.result(op)

    def result(self, op: Op) -> Live:
        """The whole result of an operation."""
        self.sizes[op.name] = self.batch * op.size
        return Live((op.name,), (self.batch, *op.shape))

    def place(self, live: Live) -> str:
        """Name of an operation that gives exactly this value; emitted when there is none yet."""
        known = self._placed.get(id(live))
        if known is None:
            known = self._placed[id(live)] = (live, self._place(live))
        return known[1]

    def _place(self, live: Live) -> str:
        shape = live.image_shape
        if live.shape[:1] != (self.batch,):
            raise Unsupported(f"a value of shape {live.shape} for {self.batch} images; keep the batch first")
        sources = [self.draft.ops[name] for name in live.sources]
        index = None if live.index is None else per_image(live, self.sizes, self.batch)
        inputs = [self.result(op) for op in sources]
        path, self.path = self.path, f"{sources[0].name}.moved"
        try:
            if index is not None and not np.array_equal(index, np.arange(sum(op.size for op in sources))):
                return self.append(Gather, inputs, shape, index=index).sources[0]
            if len(sources) > 1 and all(op.shape[1:] == shape[1:] for op in sources):
                self.path = path
                return self.append(Concat, inputs, shape).sources[0]
            if len(sources) > 1:
                return self.append(Gather, inputs, shape, index=index).sources[0]
            if sources[0].shape == shape:
                return sources[0].name
            self.path = f"{sources[0].name}.flat"
            return self.append(Flatten, inputs, shape).sources[0]
        finally:
            self.path = path

    def move(self, function: Callable[..., Any], *args: Any, exact: bool = True, **kwargs: Any) -> Any:
        """A function that only moves elements, applied to Live values; constants among them are added afterwards."""
        moved = move(function, args, kwargs, self.sizes, exact)
        constants = moved_constants(function, args, kwargs)
        if constants is None:
            return moved
        if isinstance(moved, Live):
            return self._plus(moved, constants)
        return tuple(self._plus(value, constant) for value, constant in zip(moved, constants))

    def _plus(self, x: Live, constant: Tensor) -> Live:
        if not bool(constant.any()):
            return x
        if bool((constant != constant[:1]).any()):
            raise Unsupported("a constant that differs between the images of a batch")
        return self.affine(x, 1.0, constant[0].numpy())

    def reshape(self, x: Live, shape: Sequence[int]) -> Live:
        """The same elements in the same order, in another shape (batch included)."""
        return Live(x.sources, tuple(shape), None if x.index is None else x.index.reshape(tuple(shape)))

    def affine(self, x: Live, scale: np.ndarray | float, shift: np.ndarray | float) -> Live:
        """scale·x + shift, both scalars, one number per channel, or anything that broadcasts to one image."""
        if x.shape[:1] != (self.batch,) and np.ndim(scale) == np.ndim(shift) == 0:
            return self.reshape(self.affine(self._by_image(x), scale, shift), x.shape)
        shape = x.image_shape
        arrays = [np.broadcast_to(np.asarray(value, np.float64), shape) for value in (scale, shift)]
        flat = [array.reshape(shape[0], -1) for array in arrays]
        if all((array == array[:, :1]).all() for array in flat):
            weight, bias = (array[:, 0].copy() for array in flat)
            return self.append(Affine, [x], shape, weight_frac=0, weight=weight, bias=bias)
        weight, bias = (array.ravel() for array in flat)
        line = self.reshape(x, (self.batch, math.prod(shape)))
        line = self.append(Affine, [line], line.image_shape, weight_frac=0, weight=weight, bias=bias)
        return self.reshape(line, x.shape)

    def _by_image(self, x: Live) -> Live:
        """A value whose batch is not its first dimension (x.view(-1)), one row an image."""
        size = math.prod(x.shape)
        if size % self.batch:
            raise Unsupported(f"a value of shape {x.shape} for {self.batch} images; keep the batch first")
        return self.reshape(x, (self.batch, size // self.batch))

    def activation(
        self,
        x: Live,
        knots: Sequence[float],
        slopes: Sequence[int],
        offset: float = 0.0,
        function: str = "piecewise",
        arguments: Sequence[float] = (),
        kept: np.ndarray | None = None,
        quadratic: dict[str, np.ndarray] | None = None,
    ) -> Live:
        """offset + Σ slopes·relu(x − knots) at the kept elements (all of them by default), quadratics elsewhere."""
        if x.shape[:1] != (self.batch,):
            flat = self.activation(self._by_image(x), knots, slopes, offset, function, arguments, kept, quadratic)
            return self.reshape(flat, x.shape)
        size = math.prod(x.image_shape)
        kept = np.arange(size) if kept is None else kept
        return self.append(
            Activation,
            [x],
            x.image_shape,
            kind="wire",
            frac=DRAFT_FRAC,
            open_bits=0,
            in_frac=0,
            kept=kept,
            knots=tuple(round(knot * 2**DRAFT_FRAC) for knot in knots),
            slopes=tuple(slopes),
            offset=round(offset * 2**DRAFT_FRAC),
            function=function,
            arguments=tuple(float(argument) for argument in arguments),
            kept_frac=DRAFT_FRAC,
            **(quadratic or {} if kept.size < size else {}),
        )


def need_images(x: Live) -> None:
    if len(x.shape) != 4:
        raise Unsupported(f"a value of shape {x.shape}; this operation works on (N, channels, rows, columns)")


def pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    values = tuple(value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def array(value: Any) -> np.ndarray:
    """A constant as float64."""
    return value.detach().cpu().double().numpy() if isinstance(value, Tensor) else np.asarray(value, np.float64)


def weights(value: torch.Tensor) -> np.ndarray:
    """In the model's own precision and memory: large, and only ever replaced, never written to."""
    return value.detach().cpu().numpy()
