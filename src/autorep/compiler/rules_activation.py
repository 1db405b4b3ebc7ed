"""Rules of activations: piecewise-linear functions, and the replaced ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from autorep.compiler.live import Live, Unsupported
from autorep.compiler.translate import Translator, array, rule
from autorep.errors import UnsupportedOpError

ROUNDING = 1e-5  # of coefficients held in float32 around a channel's mean


@rule("relu")
def relu(to: Translator, x: Live) -> Live:
    return to.activation(x, (0.0,), (1,))


@rule("relu6")
def relu6(to: Translator, x: Live) -> Live:
    return hardtanh(to, x, 0.0, 6.0)


@rule("hardtanh")
def hardtanh(to: Translator, x: Live, min_val=-1.0, max_val=1.0) -> Live:
    return to.activation(x, (min_val, max_val), (1, -1), offset=min_val)


@rule("clamp", "clip")
def clamp(to: Translator, x: Live, min=None, max=None) -> Live:
    if min is None or not all(isinstance(v, int | float) for v in (min, max or 0)):
        raise Unsupported("clamp needs a constant lower bound (and a constant upper one or none)")
    if max is None:
        return to.activation(x, (min,), (1,), offset=min)
    return hardtanh(to, x, min, max)


@rule("clamp_min")
def clamp_min(to: Translator, x: Live, min) -> Live:
    return clamp(to, x, min)


@rule("hardsigmoid")
def hardsigmoid(to: Translator, x: Live) -> Live:
    return hardtanh(to, to.affine(x, 1 / 6, 0.5), 0.0, 1.0)


@rule("sigmoid")
def sigmoid(to: Translator, x: Live) -> Live:
    return to.activation(x, (0.0,), (1,), function="sigmoid")


def masked(to: Translator, x: Live, module: Any) -> Live:
    """A replaced activation: kept elements compare, the others follow their channel's polynomial."""
    if tuple(module.mask.shape) != x.image_shape:
        raise Unsupported(
            f"a mask of shape {tuple(module.mask.shape)} where the value has {x.image_shape}: a mask belongs to the "
            "image size it was made for; compile with images of that size"
        )
    kept = np.sort(module.kept_index().cpu().numpy().astype(np.int64).ravel())
    try:
        coefficients = [array(value).ravel() for value in module.poly_coefficients()]
    except UnsupportedOpError as error:
        raise Unsupported(str(error)) from error
    a, b, c = (np.broadcast_to(value, (x.shape[1],)).copy() for value in coefficients)
    if not kept.size and not a.any():
        return _emptied(to, x, b, c)
    lines = {"relu": ((0.0,), (1,)), "relu6": ((0.0, 6.0), (1, -1))}
    if module.activation not in lines and kept.size:
        raise Unsupported(f"{kept.size} kept {module.activation} elements; keep relu or relu6 elements only")
    knots, slopes = lines.get(module.activation, lines["relu"])
    return to.activation(x, knots, slopes, kept=kept, quadratic={"a": a, "b": b, "c": c})


def _emptied(to: Translator, x: Live, slope: np.ndarray, shift: np.ndarray) -> Live:
    """An activation without ReLU and curvature: nothing at all where it is the identity, else a line, to be folded."""
    if np.allclose(slope, 1.0, rtol=0, atol=ROUNDING) and np.allclose(shift, 0.0, rtol=0, atol=ROUNDING):
        return x
    wide = (-1,) + (1,) * (len(x.image_shape) - 1)
    return to.affine(x, slope.reshape(wide), shift.reshape(wide))
