"""Rules of everything that is linear with constant weights: convolutions, matrix products, batch norm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from autorep.compiler.live import ZERO, Live, Unsupported, per_image
from autorep.compiler.translate import Translator, array, need_images, pair, rule, weights
from autorep.program.ir import Conv, Linear
from autorep.program.windows import output_size

Sides = tuple[tuple[int, int], tuple[int, int]]
STATISTICS = (
    "it takes statistics of the image itself, which would cost eight rounds; put BatchNorm2d in its place, which folds "
    "away: give it the same weight and bias, show it training images in train(), then fine-tune"
)


@rule("conv2d")
def conv2d(to: Translator, x: Live, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> Live:
    _constant_weight(weight)
    need_images(x)
    kernel, dilation = weights(weight), pair(dilation)
    sides = _sides(padding, kernel.shape[2:], dilation)
    return convolve(to, x, kernel, _bias(bias, weight), pair(stride), sides, dilation, groups)


@rule("conv1d")
def conv1d(to: Translator, x: Live, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> Live:
    _constant_weight(weight)
    kernel, (dilation, _) = weights(weight)[:, :, None], pair(dilation)
    sides = _sides(padding if isinstance(padding, str) else (0, pair(padding)[0]), kernel.shape[2:], (1, dilation))
    wide = to.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2]))
    result = convolve(to, wide, kernel, _bias(bias, weight), (1, pair(stride)[0]), sides, (1, dilation), groups)
    return to.reshape(result, (result.shape[0], result.shape[1], result.shape[3]))


def convolve(
    to: Translator,
    x: Live,
    kernel: np.ndarray,
    bias: np.ndarray,
    stride: tuple[int, int],
    sides: Sides,
    dilation: tuple[int, int],
    groups: int,
) -> Live:
    """A convolution with zeros around (top and bottom, left and right); zeros that x itself begins with join them."""
    x, own = _without_border(to, x)
    sides = tuple((a + c, b + d) for (a, b), (c, d) in zip(own, sides))  # type: ignore[assignment]  # two pairs
    even = _even_padding(kernel, sides, dilation)
    if even is None:
        (top, bottom), (left, right) = sides
        x = to.move(F.pad, x, (left, right, top, bottom))
        even = kernel, (0, 0)
    kernel, padding = even
    size = tuple(
        output_size(*numbers) for numbers in zip(x.image_shape[1:], kernel.shape[2:], stride, padding, dilation)
    )
    return to.append(
        Conv,
        [x],
        (kernel.shape[0], *size),
        weight_frac=0,
        kernel=tuple(kernel.shape[2:]),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        weight=kernel,
        bias=bias,
    )


@rule("conv_transpose2d")
def conv_transpose2d(
    to: Translator, x: Live, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
) -> Live:
    """The same as an ordinary convolution with the kernel turned round, of x with zeros between its elements."""
    _constant_weight(weight)
    need_images(x)
    stride, padding, extra, dilation = pair(stride), pair(padding), pair(output_padding), pair(dilation)
    inputs, per_group, *kernel = weight.shape
    turned = weight.reshape(groups, inputs // groups, per_group, *kernel).transpose(1, 2).flip(3, 4)
    turned = turned.reshape(groups * per_group, inputs // groups, *kernel)
    border = [(d * (k - 1) - p, d * (k - 1) - p + e) for d, k, p, e in zip(dilation, kernel, padding, extra)]

    def spread(numbers: torch.Tensor) -> torch.Tensor:
        rows, columns = ((size - 1) * step + 1 for size, step in zip(numbers.shape[2:], stride))
        wide = numbers.new_zeros(*numbers.shape[:2], rows, columns)
        wide[:, :, :: stride[0], :: stride[1]] = numbers
        return F.pad(wide, (*border[1], *border[0]))

    bias = np.zeros(groups * per_group) if bias is None else array(bias)
    moved = to.move(spread, x) if max(*stride, 1) > 1 or min(min(side) for side in border) < 0 else None
    if moved is None:
        return convolve(to, x, weights(turned.contiguous()), bias, (1, 1), (border[0], border[1]), dilation, groups)
    return convolve(to, moved, weights(turned.contiguous()), bias, (1, 1), ((0, 0), (0, 0)), dilation, groups)


@rule("conv_transpose1d")
def conv_transpose1d(
    to: Translator, x: Live, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
) -> Live:
    _constant_weight(weight)
    wide = to.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2]))
    s, p, e, d = (pair(value)[0] for value in (stride, padding, output_padding, dilation))
    result = conv_transpose2d(to, wide, weight[:, :, None], bias, (1, s), (0, p), (0, e), groups, (1, d))
    return to.reshape(result, (result.shape[0], result.shape[1], result.shape[3]))


@rule("linear")
def linear(to: Translator, x: Live, weight, bias=None) -> Live:
    _constant_weight(weight)
    outputs, features = weight.shape
    if len(x.shape) == 2:
        return to.append(Linear, [x], (outputs,), weight_frac=0, weight=weights(weight), bias=_bias(bias, weight))
    # along the last of several dimensions: a 1×1 convolution with that dimension as channels
    columns = to.move(lambda i: i.movedim(-1, 1).reshape(i.shape[0], features, -1, 1), x)
    kernel = weights(weight)[:, :, None, None]
    result = convolve(to, columns, kernel, _bias(bias, weight), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    return to.move(lambda i: i.reshape(x.shape[0], outputs, *x.shape[1:-1]).movedim(1, -1), result)


@rule("matmul", "mm")
def matmul(to: Translator, x, y) -> Live:
    if isinstance(y, Live) and not isinstance(x, Live) and x.dim() == 2 and len(y.shape) > 2:
        result = linear(to, to.move(torch.transpose, y, -1, -2), x)  # A·y = (yᵀ·Aᵀ)ᵀ
        return to.move(torch.transpose, result, -1, -2)
    if not isinstance(x, Live) or isinstance(y, Live) or y.dim() != 2:
        raise Unsupported("a matrix product other than of a computed value with one constant matrix")
    return linear(to, x, y.t())


@rule("einsum")
def einsum(to: Translator, equation: str, operands: Any, **kwargs: Any) -> Live:
    """A computed value times a constant: its contracted letters are the channels of a 1×1 convolution."""
    terms, arrow, output = equation.replace(" ", "").partition("->")
    letters = terms.split(",")
    lives = [i for i, value in enumerate(operands) if isinstance(value, Live)]
    if len(letters) != 2 or len(lives) != 1 or not arrow or "." in equation:
        raise Unsupported("einsum other than of one computed value and one constant, with its output written out")
    x, own, other = operands[lives[0]], letters[lives[0]], letters[1 - lives[0]]
    summed, rest = [c for c in own if c in other], [c for c in own[1:] if c not in other]
    made = [c for c in other if c not in own]
    if any(len(set(part)) < len(part) for part in (own, other)) or sorted(output) != sorted([own[0], *made, *rest]):
        raise Unsupported("einsum other than a matrix product along dimensions of one image; use Conv2d or Linear")
    constant = torch.einsum(f"{other}->{''.join(made + summed)}", operands[1 - lives[0]])
    kernel = constant.reshape(math.prod(constant.shape[: len(made)]), -1, 1, 1)
    columns = to.move(lambda i: torch.einsum(f"{own}->{own[0]}{''.join(summed + rest)}", i), x)
    kept = columns.shape[1 + len(summed) :]
    columns = to.reshape(columns, (x.shape[0], kernel.shape[1], math.prod(kept), 1))
    bias = np.zeros(len(kernel))
    result = convolve(to, columns, weights(kernel), bias, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    result = to.reshape(result, (x.shape[0], *constant.shape[: len(made)], *kept))
    return to.move(lambda i: torch.einsum(f"{own[0]}{''.join(made + rest)}->{output}", i), result)


@rule("addmm")
def addmm(to: Translator, bias, x, y, *, beta=1, alpha=1) -> Live:
    if isinstance(bias, Live) or beta != 1 or alpha != 1 or bias.dim() != 1:
        raise Unsupported("addmm other than a linear layer")
    if not isinstance(x, Live) or isinstance(y, Live):
        raise Unsupported("a matrix product other than of a computed value with a constant matrix on its right")
    return linear(to, x, y.t(), bias)


@rule("batch_norm")
def batch_norm(to: Translator, x: Live, weight, bias, mean, variance, training, momentum, eps, cudnn) -> Live:
    if mean is None or variance is None or training:
        raise Unsupported("batch norm with batch statistics; train with track_running_stats=True, call eval()")
    scale = 1.0 / np.sqrt(array(variance) + eps)
    if weight is not None:
        scale = scale * array(weight)
    shift = -array(mean) * scale
    if bias is not None:
        shift = shift + array(bias)
    wide = (-1,) + (1,) * (len(x.shape) - 2)
    return to.affine(x, scale.reshape(wide), shift.reshape(wide))


@rule("instance_norm")
def instance_norm(to: Translator, x: Live, weight, bias, mean, variance, use_input_stats, *rest: Any) -> Live:
    """With running statistics it is a batch norm."""
    if use_input_stats:
        raise Unsupported(STATISTICS)
    return batch_norm(to, x, weight, bias, mean, variance, False, *rest)


@rule("_native_batch_norm_legit_no_training")
def native_batch_norm(to: Translator, x: Live, weight, bias, mean, variance, momentum, eps) -> tuple[Any, ...]:
    """What export makes of a batch norm in evaluation mode: the result, and statistics that nobody reads."""
    return batch_norm(to, x, weight, bias, mean, variance, False, momentum, eps, False), None, None


def _constant_weight(weight: Any) -> None:
    if isinstance(weight, Live):
        raise Unsupported("weights computed from the input; use constant weights")


def _bias(bias: Any, weight: torch.Tensor) -> np.ndarray:
    if isinstance(bias, Live):
        raise Unsupported("a bias computed from the input; add it after the layer")
    return np.zeros(weight.shape[0]) if bias is None else array(bias)


def _sides(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, int]) -> Sides:
    """Zeros before and after, per axis; "same" puts the odd one after."""
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return (totals[0] // 2, totals[0] - totals[0] // 2), (totals[1] // 2, totals[1] - totals[1] // 2)
    rows, columns = (0, 0) if padding == "valid" else pair(padding)
    return (rows, rows), (columns, columns)


def _without_border(to: Translator, x: Live) -> tuple[Live, Sides]:
    """The value without rows and columns of zeros at its edges, and how many there were."""
    if x.index is None:
        return x, ((0, 0), (0, 0))
    filled = per_image(x, to.sizes, to.batch).reshape(x.image_shape) != ZERO
    spans = []
    for axis in (1, 2):
        where = np.flatnonzero(filled.any(axis=tuple(a for a in range(3) if a != axis)))
        if not where.size:
            return x, ((0, 0), (0, 0))
        spans.append((int(where[0]), int(where[-1]) + 1))
    (top, below), (left, beyond) = spans
    inner = Live(x.sources, (*x.shape[:2], below - top, beyond - left), x.index[:, :, top:below, left:beyond])
    return inner, ((top, x.shape[2] - below), (left, x.shape[3] - beyond))


def _even_padding(
    kernel: np.ndarray, sides: Sides, dilation: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int]] | None:
    """Uneven padding made even by zero rows and columns of the kernel, so that every window sees the same."""
    padding = (max(sides[0]), max(sides[1]))
    missing = [tuple(wide - side for side in both) for wide, both in zip(padding, sides)]
    if any(m % d for both, d in zip(missing, dilation) for m in both):
        return None
    rows, columns = (tuple(m // d for m in both) for both, d in zip(missing, dilation))
    return np.pad(kernel, ((0, 0), (0, 0), rows, columns)), padding
