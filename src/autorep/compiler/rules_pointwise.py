"""Rules of element-wise arithmetic: sums and products of computed values, and with constants."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from autorep.compiler.live import Live, Unsupported, expanded
from autorep.compiler.translate import Translator, array, rule
from autorep.program.ir import Add, Product


@rule("add")
def add(to: Translator, x, y, *, alpha=1) -> Live:
    if isinstance(x, Live) and isinstance(y, Live):
        shape = torch.broadcast_shapes(x.shape, y.shape)
        y = to.affine(y, float(alpha), 0.0) if alpha != 1 else y
        return to.append(Add, [expanded(x, shape, to.sizes), expanded(y, shape, to.sizes)], shape[1:])
    if isinstance(x, Live):
        return _plus(to, x, array(y) * alpha)
    return _plus(to, to.affine(y, float(alpha), 0.0) if alpha != 1 else y, array(x))


@rule("sub")
def sub(to: Translator, x, y, *, alpha=1) -> Live:
    return add(to, x, y, alpha=-alpha)


@rule("rsub")
def rsub(to: Translator, x, y, *, alpha=1) -> Live:
    return add(to, y, x, alpha=-alpha)


@rule("neg")
def neg(to: Translator, x: Live) -> Live:
    return to.affine(x, -1.0, 0.0)


@rule("mul")
def mul(to: Translator, x, y) -> Live:
    if isinstance(x, Live) and isinstance(y, Live):
        return _product(to, x, y)
    live, constant = (x, y) if isinstance(x, Live) else (y, x)
    return _times(to, live, array(constant))


@rule("div")
def div(to: Translator, x, y, *, rounding_mode=None) -> Live:
    if not isinstance(x, Live) or isinstance(y, Live) or rounding_mode is not None:
        raise Unsupported("division by a computed value, or rounded; use batch norm or a constant scale")
    return _times(to, x, 1.0 / array(y))


@rule("pow", "square")
def power(to: Translator, x: Live, exponent=2) -> Live:
    if exponent == 1 or exponent == 2:
        return x if exponent == 1 else _product(to, x, x)
    raise Unsupported(f"a power of {exponent}; only squares are possible")


@rule("lerp")
def lerp(to: Translator, x, y, weight) -> Live:
    """x + weight·(y − x)."""
    return add(to, x, mul(to, sub(to, y, x), weight))


@rule("addcmul")
def addcmul(to: Translator, x, y, z, *, value=1) -> Live:
    """x + value·y·z."""
    product = mul(to, y, z) if isinstance(y, Live) or isinstance(z, Live) else y * z
    return add(to, x, product, alpha=value)


def _plus(to: Translator, x: Live, constant: np.ndarray) -> Live:
    x, constant = _broadcast(to, x, constant)
    return to.affine(x, 1.0, constant)


def _times(to: Translator, x: Live, constant: np.ndarray) -> Live:
    x, constant = _broadcast(to, x, constant)
    return to.affine(x, constant, 0.0)


def _broadcast(to: Translator, x: Live, constant: np.ndarray) -> tuple[Live, np.ndarray]:
    """A constant against one image; it must be the same for every image."""
    shape = torch.broadcast_shapes(x.shape, constant.shape)
    if constant.ndim == len(shape) and shape[:1] == x.shape[:1]:
        if (constant != constant[:1]).any():
            raise Unsupported("a constant that differs between the images of a batch")
        constant = constant[0]
    return expanded(x, shape, to.sizes), constant


def _product(to: Translator, x: Live, y: Live) -> Live:
    """Equal shapes, or a gate (channels, 1, 1) on an image; anything else is repeated to the full shape first."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    x, y = (_gate(to, value, shape) for value in (x, y))
    if x.shape != shape:
        x, y = y, x
    if x.shape != shape:
        x = expanded(x, shape, to.sizes)
    return to.append(Product, [x, y], shape[1:])


def _gate(to: Translator, x: Live, shape: torch.Size) -> Live:
    """Shrink to (N, channels, 1, 1) what is the same all over an image; otherwise the full shape."""
    if len(shape) == 4 and x.shape == (*shape[:2], 1, 1):
        return x
    if len(shape) == 4 and x.shape == shape and isinstance(x.index, Tensor) and shape[2] * shape[3] > 1:
        corner = x.index[:, :, :1, :1]
        if bool((x.index == corner).all()):
            return Live(x.sources, (*shape[:2], 1, 1), corner)
    return expanded(x, shape, to.sizes)
