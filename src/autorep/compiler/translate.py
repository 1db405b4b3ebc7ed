"""How each torch operation becomes operations of the Program, or a sentence saying what to use instead.

A rule is a method named after the torch function and with its signature. `Live` arguments are values computed from
the input; everything else is constant. Modules call the same rules with their attributes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autorep.compiler.draft import DRAFT_FRAC, Draft
from autorep.errors import UnsupportedOpError
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
    SumPool,
)
from autorep.program.windows import output_size

_DRAFT: dict[str, Any] = {"bits": 0, "frac": 0, "kind": "sum"}


class Unsupported(Exception):
    """Raised by a rule; the message says what to use instead."""


@dataclass(frozen=True)
class Live:
    """A value computed from the input: the operation that gives it, and its shape without the batch.

    pad: zeros around it that the next convolution takes over: ((top, bottom), (left, right)).
    """

    name: str
    shape: tuple[int, ...]
    pad: tuple[tuple[int, int], tuple[int, int]] | None = None


def is_masked_activation(module: nn.Module) -> bool:
    """A replaced activation: anything that can name its kept elements and its polynomials."""
    return hasattr(module, "kept_index") and hasattr(module, "poly_coefficients")


class Translator:
    """Appends to `draft` what one call does; `path` and `shape` are those of the call being translated."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.path = ""
        self.shape: tuple[int, ...] = ()

    # linear --------------------------------------------------------------------------------------------

    def conv2d(self, x: Live, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> Live:
        kernel, stride, dilation = tuple(weight.shape[2:]), _pair(stride), _pair(dilation)
        if padding == "same":
            total = [d * (k - 1) for k, d in zip(kernel, dilation)]
            if any(t % 2 for t in total):
                raise Unsupported("padding='same' is asymmetric for an even kernel; use an odd kernel or pad=int")
            padding = [t // 2 for t in total]
        padding = (0, 0) if padding == "valid" else _pair(padding)
        self._need_images(x)
        kernel_values = _weight(weight)
        if x.pad is not None:
            sides = [(before + p, after + p) for (before, after), p in zip(x.pad, padding)]
            kernel_values, padding = _even_padding(kernel_values, sides, dilation)
            kernel, x = tuple(kernel_values.shape[2:]), Live(x.name, x.shape)
        op = Conv(
            **self._named(x),
            weight_frac=0,
            kernel=kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
        return self._add(op, weight=kernel_values, bias=_bias(bias, weight))

    def linear(self, x: Live, weight, bias=None) -> Live:
        if len(x.shape) != 1:
            raise Unsupported(f"Linear on a value of shape (N, {x.shape}); flatten it to (N, features) first")
        return self._add(Linear(**self._named(x), weight_frac=0), weight=_weight(weight), bias=_bias(bias, weight))

    def batch_norm(
        self,
        x: Live,
        running_mean,
        running_var,
        weight=None,
        bias=None,
        training=False,
        momentum=0.1,
        eps=1e-5,
    ) -> Live:
        if running_mean is None or running_var is None or training:
            raise Unsupported("batch norm with batch statistics; train with track_running_stats=True, call eval()")
        scale = 1.0 / np.sqrt(_array(running_var) + eps)
        if weight is not None:
            scale = scale * _array(weight)
        shift = -_array(running_mean) * scale
        if bias is not None:
            shift = shift + _array(bias)
        return self._affine(x, scale, shift)

    # element-wise --------------------------------------------------------------------------------------

    def add(self, x, y, *, alpha=1) -> Live:
        if alpha != 1:
            raise Unsupported("add with alpha; multiply explicitly")
        if isinstance(x, Live) and isinstance(y, Live):
            if x.shape != y.shape:
                raise Unsupported(f"sum of shapes {x.shape} and {y.shape}: only equal shapes can be added")
            return self._add(Add(**self._named(x, y)))
        live, constant = (x, y) if isinstance(x, Live) else (y, x)
        shift = self._constant(live, constant)
        return self._affine(live, np.ones_like(shift), shift)

    def mul(self, x, y) -> Live:
        if isinstance(x, Live) and isinstance(y, Live):
            if len(x.shape) == len(y.shape) and math.prod(x.shape) < math.prod(y.shape):
                x, y = y, x
            broadcast = len(x.shape) == 3 and y.shape == (x.shape[0], 1, 1)
            if x.shape != y.shape and not broadcast:
                raise Unsupported(f"product of shapes {x.shape} and {y.shape}: equal, or a gate (channels, 1, 1)")
            return self._add(Product(**self._named(x, y)))
        live, constant = (x, y) if isinstance(x, Live) else (y, x)
        scale = self._constant(live, constant)
        return self._affine(live, scale, np.zeros_like(scale))

    def sub(self, x, y, *, alpha=1) -> Live:
        if not isinstance(x, Live) or isinstance(y, Live) or alpha != 1:
            raise Unsupported("difference of computed values; negate the weights of the layer before and add")
        shift = -self._constant(x, y)
        return self._affine(x, np.ones_like(shift), shift)

    def div(self, x, y) -> Live:
        if not isinstance(x, Live) or isinstance(y, Live):
            raise Unsupported("division by a computed value; use batch norm or a constant scale")
        scale = 1.0 / self._constant(x, y)
        return self._affine(x, scale, np.zeros_like(scale))

    # activations ---------------------------------------------------------------------------------------

    def relu(self, x: Live, inplace=False) -> Live:
        return self._activation(x, (0.0,), (1,))

    def relu6(self, x: Live, inplace=False) -> Live:
        return self.hardtanh(x, 0.0, 6.0)

    def hardtanh(self, x: Live, min_val=-1.0, max_val=1.0, inplace=False) -> Live:
        return self._activation(x, (min_val, max_val), (1, -1), offset=min_val)

    def clamp(self, x: Live, min=None, max=None) -> Live:
        if min is None or not all(isinstance(v, int | float) for v in (min, max or 0)):
            raise Unsupported("clamp needs a constant lower bound (and a constant upper one or none)")
        if max is None:
            return self._activation(x, (min,), (1,), offset=min)
        return self.hardtanh(x, min, max)

    def hardsigmoid(self, x: Live, inplace=False) -> Live:
        channels = x.shape[0]
        return self.hardtanh(self._affine(x, np.full(channels, 1 / 6), np.full(channels, 0.5)), 0.0, 1.0)

    def sigmoid(self, x: Live) -> Live:
        return self._activation(x, (0.0,), (1,), function="sigmoid")

    def masked(self, x: Live, module: Any) -> Live:
        """A replaced activation: kept elements compare, the others follow their channel's polynomial."""
        kept = np.sort(module.kept_index().cpu().numpy().astype(np.int64).ravel())
        try:
            coefficients = [_array(value).ravel() for value in module.poly_coefficients()]
        except UnsupportedOpError as error:
            raise Unsupported(str(error)) from error
        a, b, c = (np.broadcast_to(value, (x.shape[0],)).copy() for value in coefficients)
        lines = {"relu": ((0.0,), (1,)), "relu6": ((0.0, 6.0), (1, -1))}
        if module.activation not in lines and kept.size:
            raise Unsupported(f"{kept.size} kept {module.activation} elements; keep relu or relu6 elements only")
        knots, slopes = lines.get(module.activation, lines["relu"])
        return self._activation(x, knots, slopes, kept=kept, quadratic={"a": a, "b": b, "c": c})

    # pooling -------------------------------------------------------------------------------------------

    def avg_pool2d(
        self,
        x: Live,
        kernel_size,
        stride=None,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ) -> Live:
        kernel, padding = _pair(kernel_size), _pair(padding)
        stride = kernel if stride is None or stride == [] else _pair(stride)
        if any(padding) and not count_include_pad:
            raise Unsupported("average pool with padding and count_include_pad=False; use count_include_pad=True")
        return self._average(x, kernel, stride, padding, divisor_override or kernel[0] * kernel[1])

    def adaptive_avg_pool2d(self, x: Live, output_size) -> Live:
        kernel = self._adaptive(x, output_size)
        return self._average(x, kernel, kernel, (0, 0), kernel[0] * kernel[1])

    def max_pool2d(
        self, x: Live, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
    ) -> Live:
        kernel, padding = _pair(kernel_size), _pair(padding)
        stride = kernel if stride is None or stride == [] else _pair(stride)
        if return_indices or _pair(dilation) != (1, 1):
            raise Unsupported("max pool with dilation or indices; use a plain max pool")
        self._check_windows(x, kernel, stride, padding)
        return self._add(MaxPool(**self._named(x), kernel=kernel, stride=stride, padding=padding))

    def adaptive_max_pool2d(self, x: Live, output_size, return_indices=False) -> Live:
        kernel = self._adaptive(x, output_size)
        return self.max_pool2d(x, kernel, kernel, return_indices=return_indices)

    def mean(self, x: Live, dim=None, keepdim=False) -> Live:
        dims = {d % (len(x.shape) + 1) for d in ([dim] if isinstance(dim, int) else dim or [])}
        if len(x.shape) != 3 or dims != {2, 3}:
            raise Unsupported("mean over anything but rows and columns (dim=(2, 3)); use adaptive_avg_pool2d(1)")
        whole, self.shape = (x.shape[1], x.shape[2]), (x.shape[0], 1, 1)
        pooled = self._average(x, whole, whole, (0, 0), whole[0] * whole[1])
        return pooled if keepdim else self._reshape(pooled, (x.shape[0],))

    # shapes --------------------------------------------------------------------------------------------

    def reshape(self, x: Live, *_: Any, **__: Any) -> Live:
        """flatten, view, reshape, squeeze, unsqueeze, expand: whatever the arguments, the result's shape decides."""
        if self.shape == x.shape:
            return x
        flat = (math.prod(x.shape),)
        sides = {*x.shape[1:], *self.shape[1:]}  # all 1: a vector over channels, however written
        if self.shape == flat or (self.shape[:1] == x.shape[:1] and sides == {1}):
            return self._reshape(x, self.shape)
        raise Unsupported(f"reshape of {x.shape} to {self.shape} (without the batch); only flattening is possible")

    def expand_as(self, x: Live, *_: Any) -> Live:
        return x  # Product broadcasts by itself; any other use meets a shape that does not fit and is refused

    def pad(self, x: Live, pad, mode="constant", value=None) -> Live:
        """Zero padding, which the convolution after it takes over."""
        if mode != "constant" or value or len(pad) != 4 or min(pad) < 0 or len(x.shape) != 3 or x.pad:
            raise Unsupported("padding other than with zeros around images, right before a convolution")
        left, right, top, bottom = pad
        return Live(x.name, x.shape, ((top, bottom), (left, right)))

    def cat(self, tensors, dim=0) -> Live:
        if dim != 1 or not all(isinstance(t, Live) for t in tensors):
            raise Unsupported("cat along another dimension than 1 (channels), or with a constant")
        return self._add(Concat(**self._named(*tensors)))

    def identity(self, x: Live, *_: Any, **__: Any) -> Live:
        return x

    def dropout(self, x: Live, p=0.5, training=True, inplace=False) -> Live:
        if training:
            raise Unsupported("dropout with training=True; pass training=self.training and call eval()")
        return x

    # helpers -------------------------------------------------------------------------------------------

    def _named(self, *inputs: Live) -> dict[str, Any]:
        if any(x.pad for x in inputs):
            raise Unsupported("zero padding that no convolution follows; pad right before a convolution")
        return {**_DRAFT, "name": self.path, "inputs": tuple(x.name for x in inputs), "shape": self.shape}

    def _add(self, op: Op, **parameters: np.ndarray) -> Live:
        op = self.draft.add(op, **parameters)
        return Live(op.name, op.shape)

    def _affine(self, x: Live, scale: np.ndarray, shift: np.ndarray) -> Live:
        named = {**self._named(x), "shape": x.shape}
        return self._add(Affine(**named, weight_frac=0), weight=scale, bias=shift)

    def _reshape(self, x: Live, shape: tuple[int, ...]) -> Live:
        return self._add(Flatten(**{**self._named(x), "shape": shape, "name": f"{self.path}.flat"}))

    def _activation(
        self,
        x: Live,
        knots: tuple[float, ...],
        slopes: tuple[int, ...],
        offset: float = 0.0,
        function: Any = "piecewise",
        kept: np.ndarray | None = None,
        quadratic: dict[str, np.ndarray] | None = None,
    ) -> Live:
        size = math.prod(x.shape)
        kept = np.arange(size) if kept is None else kept
        op = Activation(
            **{**self._named(x), "kind": "wire", "frac": DRAFT_FRAC, "shape": x.shape},
            open_bits=0,
            in_frac=0,
            kept=kept,
            knots=tuple(round(knot * 2**DRAFT_FRAC) for knot in knots),
            slopes=slopes,
            offset=round(offset * 2**DRAFT_FRAC),
            function=function,
            kept_frac=DRAFT_FRAC,
        )
        return self._add(op, **(quadratic or {} if kept.size < size else {}))

    def _average(self, x: Live, kernel, stride, padding, divisor: int) -> Live:
        self._check_windows(x, kernel, stride, padding)
        total = self._add(SumPool(**self._named(x), kernel=kernel, stride=stride, padding=padding))
        channels = x.shape[0]
        path, self.path = self.path, f"{self.path}.scale"
        result = self._affine(total, np.full(channels, 1.0 / divisor), np.zeros(channels))
        self.path = path
        return result

    def _adaptive(self, x: Live, output: Any) -> tuple[int, int]:
        self._need_images(x)
        sizes = [o or s for o, s in zip(_pair(output), x.shape[1:])]
        if any(s % o for s, o in zip(x.shape[1:], sizes)):
            raise Unsupported(f"adaptive pool of {x.shape[1:]} to {tuple(sizes)}: the sizes must divide evenly")
        return x.shape[1] // sizes[0], x.shape[2] // sizes[1]

    def _check_windows(self, x: Live, kernel, stride, padding) -> None:
        self._need_images(x)
        expected = tuple(output_size(*args) for args in zip(x.shape[1:], kernel, stride, padding))
        if self.shape[1:] != expected:
            raise Unsupported(f"pool with ceil_mode=True gives {self.shape[1:]}, not {expected}; use ceil_mode=False")

    def _need_images(self, x: Live) -> None:
        if len(x.shape) != 3:
            raise Unsupported(f"value of shape (N, {x.shape}); this operation works on (N, channels, rows, columns)")

    def _constant(self, x: Live, value: Any) -> np.ndarray:
        """A scalar or per-channel constant as a vector over channels."""
        array = np.asarray(value.detach().cpu().double() if isinstance(value, torch.Tensor) else value, np.float64)
        channels = x.shape[0]
        if array.size == 1:
            return np.full(channels, array.item())
        wanted = (channels,) + (1,) * (len(x.shape) - 1)
        if array.size == channels and (array.shape == wanted or array.shape == (1, *wanted)):
            return array.reshape(channels)
        raise Unsupported(f"constant of shape {array.shape}; a scalar or one number per channel {wanted} is possible")


def _even_padding(
    weight: np.ndarray, sides: list[tuple[int, int]], dilation: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int]]:
    """Uneven padding made even by zero rows and columns of the kernel, so that every window sees the same."""
    padding = (max(sides[0]), max(sides[1]))
    extra = [tuple(wide - side for side in pair) for wide, pair in zip(padding, sides)]
    if any(missing % d for pair, d in zip(extra, dilation) for missing in pair):
        raise Unsupported("uneven padding of a dilated convolution; pad evenly")
    rows, columns = (tuple(missing // d for missing in pair) for pair, d in zip(extra, dilation))
    return np.pad(weight, ((0, 0), (0, 0), rows, columns)), padding


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    values = tuple(value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else np.asarray(value, np.float64)


def _weight(value: torch.Tensor) -> np.ndarray:
    """In the model's own precision and memory: large, and only ever replaced, never written to."""
    return value.detach().cpu().numpy()


def _bias(bias: Any, weight: Any) -> np.ndarray:
    return np.zeros(weight.shape[0]) if bias is None else _array(bias)
