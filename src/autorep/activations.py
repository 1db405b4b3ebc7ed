"""Every activation AutoReP knows, one entry each: what it computes, and how it runs privately.

An entry that is piecewise linear with small whole slopes (ReLU, ReLU6, Hardtanh) is exact in fixed point; any other
becomes a spline of straight lines with a stated error (`compiler.piecewise`). Both take one comparison key an element
and no further round. The compiler, the float interpreter and replacement all read this table: a new activation that is
flat on its left and flat or of slope 1 on its right is one entry here. Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Lines = tuple[tuple[float, ...], tuple[int, ...], float]  # knots, changes of slope, value on the far left


@dataclass(frozen=True)
class Kind:
    """One activation.

    Attributes:
        name: as torch.nn.functional and ATen spell it.
        module: its class in torch.nn.
        function: of an array and the arguments.
        settings: the module's attributes that are arguments, in order, with torch's defaults.
        lines: exact knots, slopes and offset for given arguments, or None for a spline.
        slope: far on the right, 0 or 1.
        leaky: whether it is not flat on the left but has the slope of its one argument: slope·y + (1 − slope)·relu(y).
    """

    name: str
    module: str
    function: Callable[..., np.ndarray]
    settings: tuple[tuple[str, float], ...] = ()
    lines: Callable[..., Lines] | None = None
    slope: int = 1
    leaky: bool = False

    @property
    def defaults(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.settings)


def _sigmoid(y: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * y))


def _softplus(y: np.ndarray, beta: float = 1.0, threshold: float = 20.0) -> np.ndarray:
    soft = np.logaddexp(0.0, beta * y) / beta
    return np.where(beta * y > threshold, y, soft)


def _elu(y: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(y > 0, y, alpha * np.expm1(np.minimum(y, 0)))


def _celu(y: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(y > 0, y, alpha * np.expm1(np.minimum(y, 0) / alpha))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(y: np.ndarray) -> np.ndarray:
    return (0.5 * y * (1.0 + _erf(y / math.sqrt(2.0)))).astype(y.dtype)


def _gelu_tanh(y: np.ndarray) -> np.ndarray:
    return 0.5 * y * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))


ACTIVATIONS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("relu", "ReLU", lambda y: np.maximum(y, 0), lines=lambda: ((0.0,), (1,), 0.0)),
        Kind("relu6", "ReLU6", lambda y: np.clip(y, 0, 6), lines=lambda: ((0.0, 6.0), (1, -1), 0.0), slope=0),
        Kind(
            "hardtanh",
            "Hardtanh",
            np.clip,
            (("min_val", -1.0), ("max_val", 1.0)),
            lambda low, high: ((low, high), (1, -1), low),
            slope=0,
        ),
        Kind(
            "leaky_relu",
            "LeakyReLU",
            lambda y, slope: np.where(y > 0, y, slope * y),
            (("negative_slope", 0.01),),
            leaky=True,
        ),
        Kind("sigmoid", "Sigmoid", _sigmoid, slope=0),
        Kind("tanh", "Tanh", np.tanh, slope=0),
        Kind("silu", "SiLU", lambda y: y * _sigmoid(y)),
        Kind("gelu", "GELU", _gelu),
        Kind("gelu_tanh", "", _gelu_tanh),
        Kind("hardswish", "Hardswish", lambda y: y * np.clip(y + 3, 0, 6) / 6),
        Kind("elu", "ELU", _elu, (("alpha", 1.0),)),
        Kind("celu", "CELU", _celu, (("alpha", 1.0),)),
        Kind("softplus", "Softplus", _softplus, (("beta", 1.0), ("threshold", 20.0))),
        Kind("mish", "Mish", lambda y: y * np.tanh(_softplus(y))),
    )
}
