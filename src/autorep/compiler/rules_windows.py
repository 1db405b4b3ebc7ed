"""Rules of pooling and reductions: sums and maxima over windows of any shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from autorep.compiler.live import Live, Unsupported
from autorep.compiler.rules_activation import maximum as larger
from autorep.compiler.rules_activation import minimum as smaller
from autorep.compiler.translate import Translator, need_images, pair, rule
from autorep.program.ir import MaxPool, SumPool
from autorep.program.windows import output_size

Window = list[int]  # positions along one axis that a window covers; those outside the image are padding


@rule("avg_pool2d")
def avg_pool2d(
    to: Translator,
    x: Live,
    kernel_size,
    stride=(),
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
) -> Live:
    need_images(x)
    kernel, padding = pair(kernel_size), pair(padding)
    stride = pair(stride) if stride else kernel
    axes = [_pool_axis(*numbers, 1, ceil_mode) for numbers in zip(x.shape[2:], kernel, stride, padding)]
    counts = []
    for size, pad, windows in zip(x.shape[2:], padding, axes):
        reach = (-pad, size + pad) if count_include_pad else (0, size)
        counts.append([sum(reach[0] <= p < reach[1] for p in window) for window in windows])
    divisor = np.outer(counts[0], counts[1]) if divisor_override is None else np.full((1, 1), divisor_override)
    return average(to, x, axes, divisor)


@rule("avg_pool1d")
def avg_pool1d(to: Translator, x: Live, kernel_size, stride=(), padding=0, ceil_mode=False, include=True) -> Live:
    wide = to.reshape(x, (*x.shape[:2], 1, x.shape[2]))
    step = (1, pair(stride)[0]) if stride else (1, pair(kernel_size)[0])
    pooled = avg_pool2d(to, wide, (1, pair(kernel_size)[0]), step, (0, pair(padding)[0]), ceil_mode, include)
    return to.reshape(pooled, (*pooled.shape[:2], pooled.shape[3]))


@rule("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def adaptive_avg_pool2d(to: Translator, x: Live, output_size) -> Live:
    need_images(x)
    axes = [_adaptive_axis(size, wanted) for size, wanted in zip(x.shape[2:], output_size)]
    rows, columns = ([len(window) for window in windows] for windows in axes)
    return average(to, x, axes, np.outer(rows, columns))


@rule("adaptive_avg_pool1d")
def adaptive_avg_pool1d(to: Translator, x: Live, output_size) -> Live:
    wide = to.reshape(x, (*x.shape[:2], 1, x.shape[2]))
    pooled = adaptive_avg_pool2d(to, wide, (1, pair(output_size)[0]))
    return to.reshape(pooled, (*pooled.shape[:2], pooled.shape[3]))


@rule("max_pool2d")
def max_pool2d(to: Translator, x: Live, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False) -> Live:
    need_images(x)
    kernel = pair(kernel_size)
    stride = pair(stride) if stride else kernel
    axes = [
        _pool_axis(*numbers, ceil_mode) for numbers in zip(x.shape[2:], kernel, stride, pair(padding), pair(dilation))
    ]
    return maximum(to, x, axes)


@rule("max_pool2d_with_indices")
def max_pool2d_with_indices(to: Translator, x: Live, *args: Any, **kwargs: Any) -> tuple[Live, None]:
    """The maxima, and no positions of theirs."""
    return max_pool2d(to, x, *args, **kwargs), None


@rule("max_pool1d")
def max_pool1d(to: Translator, x: Live, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False) -> Live:
    wide = to.reshape(x, (*x.shape[:2], 1, x.shape[2]))
    k, s, p, d = (pair(value)[0] for value in (kernel_size, stride or kernel_size, padding, dilation))
    pooled = max_pool2d(to, wide, (1, k), (1, s), (0, p), (1, d), ceil_mode)
    return to.reshape(pooled, (*pooled.shape[:2], pooled.shape[3]))


@rule("adaptive_max_pool2d")
def adaptive_max_pool2d(to: Translator, x: Live, output_size) -> tuple[Live, None]:
    """The maxima, and no positions of theirs."""
    need_images(x)
    return maximum(to, x, [_adaptive_axis(size, wanted) for size, wanted in zip(x.shape[2:], output_size)]), None


@rule("mean")
def mean(to: Translator, x: Live, dim=None, keepdim=False, *, dtype=None) -> Live:
    return _reduced(to, x, dim, keepdim, lambda flat: average(to, flat, *_whole(flat)))


@rule("sum")
def total(to: Translator, x: Live, dim=None, keepdim=False, *, dtype=None) -> Live:
    return _reduced(to, x, dim, keepdim, lambda flat: average(to, flat, _whole(flat)[0], np.ones((1, 1))))


@rule("amax")
def amax(to: Translator, x: Live, dim=(), keepdim=False) -> Live:
    return _reduced(to, x, dim, keepdim, lambda flat: maximum(to, flat, _whole(flat)[0]))


@rule("amin")
def amin(to: Translator, x: Live, dim=(), keepdim=False) -> Live:
    """−max(−x)."""
    return to.affine(amax(to, to.affine(x, -1.0, 0.0), dim, keepdim), -1.0, 0.0)


@rule("max")
def maximum_along(to: Translator, x, dim=None, keepdim=False) -> Live | tuple[Live, None]:
    """torch.max(x, dim): the maxima, and no positions of theirs; torch.max(x, y): the larger of two values."""
    if isinstance(dim, Live | Tensor):
        return larger(to, x, dim)
    if dim is None:
        raise Unsupported("the largest value of a whole batch; use max pooling or ReLU")
    return amax(to, x, [dim], keepdim), None


@rule("min")
def minimum_along(to: Translator, x, dim=None, keepdim=False) -> Live | tuple[Live, None]:
    """torch.min(x, dim): the minima, and no positions of theirs; torch.min(x, y): the smaller of two values."""
    if isinstance(dim, Live | Tensor):
        return smaller(to, x, dim)
    if dim is None:
        raise Unsupported("the smallest value of a whole batch; use max pooling or ReLU")
    return amin(to, x, [dim], keepdim), None


def average(to: Translator, x: Live, axes: Sequence[list[Window]], divisor: np.ndarray) -> Live:
    """Sums over windows, divided by one number or one for each position."""
    regular = _regular(x.shape[2:], axes)
    if regular is not None:
        kernel, stride, padding = regular
        result = to.append(SumPool, [x], _pooled(x, axes), kernel=kernel, stride=stride, padding=padding)
    else:
        sizes = [max(len(window) for window in windows) for windows in axes]
        picks = [
            [p if 0 <= p < size else size for window in windows for p in (*window, *[size] * (longest - len(window)))]
            for size, longest, windows in zip(x.shape[2:], sizes, axes)
        ]
        spread = to.move(_picked, x, *picks)
        kernel = (sizes[0], sizes[1])
        result = to.append(SumPool, [spread], _pooled(x, axes), kernel=kernel, stride=kernel)
    if (divisor == 1).all():
        return result
    path, to.path = to.path, f"{to.path}.scale"
    result = to.affine(result, 1.0 / divisor, 0.0)
    to.path = path
    return result


def maximum(to: Translator, x: Live, axes: Sequence[list[Window]]) -> Live:
    """Maxima over windows; where a window reaches outside, or is short, an element of its own stands in."""
    regular = _regular(x.shape[2:], axes)
    if regular is not None:
        kernel, stride, padding = regular
        return to.append(MaxPool, [x], _pooled(x, axes), kind="wire", kernel=kernel, stride=stride, padding=padding)
    sizes = [max(len(window) for window in windows) for windows in axes]
    picks = []
    for size, longest, windows in zip(x.shape[2:], sizes, axes):
        inside = [[p for p in window if 0 <= p < size] for window in windows]
        picks.append([p for own in inside for p in (*own, *[own[0]] * (longest - len(own)))])
    spread = to.move(_picked, x, *picks)
    kernel = (sizes[0], sizes[1])
    return to.append(MaxPool, [spread], _pooled(x, axes), kind="wire", kernel=kernel, stride=kernel)


def _picked(numbers: Tensor, rows: list[int], columns: list[int]) -> Tensor:
    """These rows and columns of an image; one beyond the last is zero."""
    return F.pad(numbers, (0, 1, 0, 1))[:, :, rows][:, :, :, columns]


def _pool_axis(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> list[Window]:
    count = output_size(size, kernel, stride, padding, dilation)
    if ceil_mode:
        count = -(-(size + 2 * padding - dilation * (kernel - 1) - 1) // stride) + 1
        if (count - 1) * stride >= size + padding:  # the last window must start inside the image or its left padding
            count -= 1
    return [[i * stride - padding + j * dilation for j in range(kernel)] for i in range(count)]


def _adaptive_axis(size: int, wanted: int) -> list[Window]:
    return [list(range(i * size // wanted, -(-(i + 1) * size // wanted))) for i in range(wanted)]


def _regular(sizes: Sequence[int], axes: Sequence[list[Window]]) -> tuple[tuple[int, int], ...] | None:
    """(kernel, stride, padding) when the windows are those of a plain pool with even padding."""
    found = []
    for size, windows in zip(sizes, axes):
        kernel, padding = len(windows[0]), -windows[0][0]
        stride = windows[1][0] - windows[0][0] if len(windows) > 1 else max(kernel, size)
        plain = [[i * stride - padding + j for j in range(kernel)] for i in range(len(windows))]
        if padding < 0 or windows != plain or len(windows) != output_size(size, kernel, stride, padding):
            return None
        found.append((kernel, stride, padding))
    rows, columns = found
    return (rows[0], columns[0]), (rows[1], columns[1]), (rows[2], columns[2])


def _pooled(x: Live, axes: Sequence[list[Window]]) -> tuple[int, ...]:
    return (x.shape[1], len(axes[0]), len(axes[1]))


def _whole(x: Live) -> tuple[list[list[Window]], np.ndarray]:
    """One window over each image, and its size."""
    return [[list(range(size))] for size in x.shape[2:]], np.full((1, 1), math.prod(x.shape[2:]))


def _reduced(to: Translator, x: Live, dim: Any, keepdim: bool, reduce: Any) -> Live:
    """Bring the reduced dimensions last, reduce, and put the result in shape."""
    rank = len(x.shape)
    dims = sorted({d % rank for d in ([dim] if isinstance(dim, int) else dim or range(rank))})
    if 0 in dims:
        raise Unsupported("a reduction over the batch; name the dimensions of one image, for example dim=(2, 3)")
    kept = [d for d in range(1, rank) if d not in dims]
    shape = [1 if d in dims else size for d, size in enumerate(x.shape) if keepdim or d not in dims]
    if dims != list(range(rank - len(dims), rank)):
        x = to.move(torch.permute, x, (0, *kept, *dims))
    sides = [x.shape[-1]] if len(dims) == 1 else [math.prod(x.shape[len(kept) + 1 : -1]), x.shape[-1]]
    flat = to.reshape(x, (x.shape[0], math.prod(x.shape[1 : len(kept) + 1]), *[1] * (2 - len(sides)), *sides))
    return to.reshape(reduce(flat), shape)
