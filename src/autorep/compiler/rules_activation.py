"""Rules of activations: those of the table, those made of them, and the replaced ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from autorep.activations import ACTIVATIONS, Kind
from autorep.compiler.draft import DRAFT_FRAC
from autorep.compiler.live import Live, Unsupported
from autorep.compiler.piecewise import spline
from autorep.compiler.rules_pointwise import add, mul, sub
from autorep.compiler.translate import Rule, Translator, array, rule
from autorep.errors import UnsupportedOpError
from autorep.program.ir import Add, Sign

NO_CUBE = 1e-3  # of the coefficient of x⁴: what rounding leaves of a cubic term
ROUNDING = 1e-5  # of coefficients held in float32 around a channel's mean


def of_kind(kind: Kind) -> Rule:
    """The rule of one entry of the table: exact lines where it has them, a spline otherwise."""

    def apply(to: Translator, x: Live, *given: Any, **named: Any) -> Live:
        values = dict(zip((name for name, _ in kind.settings), given)) | named
        unknown = [name for name in values if name not in dict(kind.settings)]
        if unknown or len(given) > len(kind.settings):
            raise Unsupported(f"{kind.name} with {unknown or given}; {kind.settings} can be set")
        return activate(to, x, kind, tuple(values.get(name, default) for name, default in kind.settings))

    return apply


def activate(to: Translator, x: Live, kind: Kind, arguments: tuple[float, ...], **quadratics: Any) -> Live:
    """An activation of the table on every element, or on the kept ones beside quadratics."""
    if kind.lines is not None:
        knots, slopes, offset = kind.lines(*arguments)
        return to.activation(x, knots, slopes, offset, **quadratics)
    try:
        spline(kind.name, arguments, 9, 7)  # whether there is one at all
    except ValueError as error:
        raise Unsupported(f"{error}; use another activation") from error
    return to.activation(x, (0.0,), (1,), function=kind.name, arguments=arguments, **quadratics)


for _kind in ACTIVATIONS.values():
    if not _kind.leaky:
        rule(_kind.name)(of_kind(_kind))


@rule("gelu")
def gelu(to: Translator, x: Live, *, approximate: str = "none") -> Live:
    return activate(to, x, ACTIVATIONS["gelu" if approximate == "none" else "gelu_tanh"], ())


@rule("elu")
def elu(to: Translator, x: Live, alpha=1.0, scale=1.0, input_scale=1.0) -> Live:
    if input_scale != 1:
        raise Unsupported("elu with input_scale")
    result = activate(to, x, ACTIVATIONS["elu"], (float(alpha),))
    return result if scale == 1 else to.affine(result, float(scale), 0.0)


@rule("selu")
def selu(to: Translator, x: Live) -> Live:
    return elu(to, x, 1.6732632423543772, 1.0507009873554805)


@rule("hardsigmoid")
def hardsigmoid(to: Translator, x: Live) -> Live:
    return activate(to, to.affine(x, 1 / 6, 0.5), ACTIVATIONS["hardtanh"], (0.0, 1.0))


@rule("clamp", "clip")
def clamp(to: Translator, x: Live, min=None, max=None) -> Live:
    if not all(isinstance(bound, int | float | None) for bound in (min, max)):
        raise Unsupported("clamp with bounds that are tensors; use numbers")
    if math.inf == min or -math.inf == max or any(bound is not None and math.isnan(bound) for bound in (min, max)):
        raise Unsupported(f"clamp between {min} and {max}; leave out a bound that is none")
    min, max = (None if bound is not None and math.isinf(bound) else bound for bound in (min, max))
    if min is None and max is None:
        return x
    if min is not None and max is not None and min >= max:  # as torch has it
        return to.affine(x, 0.0, max)
    if min is not None and max is not None:
        return activate(to, x, ACTIVATIONS["hardtanh"], (min, max))
    if min is not None:
        return to.activation(x, (min,), (1,), offset=min)
    # min(x, bound) = bound − relu(bound − x)
    return to.affine(to.activation(to.affine(x, -1.0, max), (0.0,), (1,)), -1.0, max)


@rule("clamp_min")
def clamp_min(to: Translator, x: Live, min) -> Live:
    return clamp(to, x, min)


@rule("clamp_max")
def clamp_max(to: Translator, x: Live, max) -> Live:
    return clamp(to, x, None, max)


@rule("leaky_relu")
def leaky_relu(to: Translator, x: Live, negative_slope=0.01) -> Live:
    return leaky(to, x, float(negative_slope))


@rule("prelu")
def prelu(to: Translator, x: Live, weight) -> Live:
    """The learned slopes stay secret."""
    return leaky(to, x, array(weight).reshape((-1,) + (1,) * (len(x.shape) - 2)))


@rule("rrelu")
def rrelu(to: Translator, x: Live, lower=1 / 8, upper=1 / 3, training=False, generator=None) -> Live:
    if training:
        raise Unsupported("RReLU with random slopes; call eval()")
    return leaky(to, x, (lower + upper) / 2)


@rule("log_sigmoid")
def log_sigmoid(to: Translator, x: Live) -> Live:
    """−softplus(−x)."""
    kind = ACTIVATIONS["softplus"]
    return to.affine(activate(to, to.affine(x, -1.0, 0.0), kind, kind.defaults), -1.0, 0.0)


@rule("threshold")
def threshold(to: Translator, x: Live, threshold, value) -> Live:
    if threshold != value:
        raise Unsupported(f"a jump from {value} to {threshold}; use ReLU or clamp, which have none")
    return clamp(to, x, threshold)


@rule("glu")
def glu(to: Translator, x: Live, dim=-1) -> Live:
    """The first half times the sigmoid of the second."""
    first, second = to.move(torch.chunk, x, 2, dim)
    path, to.path = to.path, f"{to.path}.gate"
    gate = activate(to, second, ACTIVATIONS["sigmoid"], ())
    to.path = path
    return mul(to, first, gate)


@rule("abs")
def absolute(to: Translator, x: Live) -> Live:
    return leaky(to, x, -1.0)


def leaky(to: Translator, x: Live, slope: Any, **quadratics: Any) -> Live:
    """slope·x + (1 − slope)·relu(x): exact, at the price of opening x itself too."""
    path = to.path
    positive = to.activation(x, (0.0,), (1,), **quadratics)
    to.path = f"{path}.slope"
    rest = to.affine(x, slope, 0.0), to.affine(positive, 1.0 - np.asarray(slope), 0.0)
    to.path = f"{path}.sum"
    return to.append(Add, rest, x.image_shape)


@rule("sign")
def sign(to: Translator, x: Live) -> Live:
    """1 or −1: one comparison an element. torch says 0 at exactly 0, here that is 1."""
    return to.append(
        Sign, [x], x.image_shape, kind="wire", frac=0, open_bits=0, in_frac=0, kept_frac=DRAFT_FRAC, window=0
    )


@rule("maximum")
def maximum(to: Translator, x, y) -> Live:
    """y + relu(x − y)."""
    return add(to, y, to.activation(sub(to, x, y), (0.0,), (1,)))


@rule("minimum")
def minimum(to: Translator, x, y) -> Live:
    """x − relu(x − y)."""
    return sub(to, x, to.activation(sub(to, x, y), (0.0,), (1,)))


def masked(to: Translator, x: Live, module: Any) -> Live:
    """A replaced activation: kept elements compare, the others follow their channel's polynomial."""
    if x.shape[:1] != (to.batch,):
        raise Unsupported(f"a value of shape {x.shape} for {to.batch} images under a mask; keep the batch first")
    if tuple(module.mask.shape) != x.image_shape:
        raise Unsupported(
            f"a mask of shape {tuple(module.mask.shape)} where the value has {x.image_shape}: a mask belongs to the "
            "image size it was made for; compile with images of that size"
        )
    kept = np.sort(module.kept_index().cpu().numpy().astype(np.int64).ravel())
    if module.degree == 4 and not kept.size:
        return _quartic(to, x, *(array(row) for row in module.power_coefficients()))
    try:
        coefficients = [array(value).ravel() for value in module.poly_coefficients()]
    except UnsupportedOpError as error:
        raise Unsupported(str(error)) from error
    a, b, c = (np.broadcast_to(value, (x.shape[1],)).copy() for value in coefficients)
    if not kept.size and not a.any():
        return _emptied(to, x, b, c)
    kind, arguments = ACTIVATIONS[module.activation], tuple(module.arguments)
    if kind.leaky:  # what is left of the polynomial when slope·x is added and the rest multiplied by 1 − slope
        (slope,) = arguments
        rest = {"a": a / (1 - slope), "b": (b - slope) / (1 - slope), "c": c / (1 - slope)}
        return leaky(to, x, slope, kept=kept, quadratic=rest)
    return activate(to, x, kind, arguments, kept=kept, quadratic={"a": a, "b": b, "c": c})


def _emptied(to: Translator, x: Live, slope: np.ndarray, shift: np.ndarray) -> Live:
    """An activation without ReLU and curvature: nothing at all where it is the identity, else a line, to be folded."""
    if np.allclose(slope, 1.0, rtol=0, atol=ROUNDING) and np.allclose(shift, 0.0, rtol=0, atol=ROUNDING):
        return x
    wide = (-1,) + (1,) * (len(x.image_shape) - 1)
    return to.affine(x, slope.reshape(wide), shift.reshape(wide))


def _quartic(to: Translator, x: Live, *powers: np.ndarray) -> Live:
    """a₄x⁴ + a₂x² + a₁x + a₀ by two squares in a row and x itself opened: fits of a ReLU around 0 have no cube."""
    constant, line, square, cube, fourth = powers
    if (np.abs(cube) > NO_CUBE * np.abs(fourth)).any():
        raise Unsupported("polynomials of degree 4 with a cubic term; replace with degree=2 or 1, or by pillar4")
    path, ones = to.path, np.ones(x.shape[1])
    none = np.empty(0, np.int64)
    to.path = f"{path}.square"
    squared = to.activation(x, (0.0,), (1,), kept=none, quadratic={"a": ones, "b": 0 * ones, "c": 0 * ones})
    to.path = f"{path}.fourth"
    even = to.activation(squared, (0.0,), (1,), kept=none, quadratic={"a": fourth, "b": square, "c": constant})
    to.path = f"{path}.line"
    odd = to.affine(x, line.reshape((-1,) + (1,) * (len(x.image_shape) - 1)), 0.0)
    to.path = path
    return to.append(Add, (odd, even), x.image_shape)
