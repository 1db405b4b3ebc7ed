"""Sliding windows over images, and the float convolution built on them (numpy only)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Pair = tuple[int, int]
Convolve = Callable[[np.ndarray, np.ndarray, Pair, Pair, Pair, int], np.ndarray]

_CHUNK_BYTES = 1 << 26  # unfolded columns held at once


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Windows that fit along one side."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def windows(
    x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1), fill: float | int = 0
) -> np.ndarray:
    """View (N, C, rows, columns, kh, kw) of every window of x (N, C, H, W), padded with `fill`."""
    if any(padding):
        widths = ((0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1]))
        x = np.pad(x, widths, constant_values=fill)
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))
    view = sliding_window_view(x, span, axis=(2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def convolution(
    x: np.ndarray, weight: np.ndarray, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> np.ndarray:
    """Convolution of x (N, C, H, W) with weight (O, C/groups, kh, kw), in the arithmetic of its dtype."""
    outputs, per_group, *kernel = weight.shape
    view = windows(x, (kernel[0], kernel[1]), stride, padding, dilation)
    batch, _, rows, columns = view.shape[:4]
    result = np.empty((batch, outputs, rows, columns), x.dtype)
    if per_group == 1 and groups > 1:
        _depthwise(view, weight, groups, result)
        return result
    grouped = weight.reshape(groups, outputs // groups, -1)
    image_bytes = max(1, view[0].size * x.itemsize)
    step = max(1, _CHUNK_BYTES // image_bytes)
    for start in range(0, batch, step):  # one product for all images of a chunk: many small ones would crawl
        part = view[start : start + step]
        unfolded = part.transpose(1, 4, 5, 0, 2, 3).reshape(groups, -1, len(part) * rows * columns)
        product = (grouped @ unfolded).reshape(outputs, len(part), rows, columns)
        result[start : start + step] = product.transpose(1, 0, 2, 3)
    return result


def _depthwise(view: np.ndarray, weight: np.ndarray, groups: int, result: np.ndarray) -> None:
    """One tap at a time: a depthwise product is memory-bound, so unfolding it would only cost."""
    batch, _, rows, columns, kernel_rows, kernel_columns = view.shape
    multiple = weight.shape[0] // groups
    out = result.reshape(batch, groups, multiple, rows, columns)
    out[...] = 0
    taps = weight.reshape(groups, multiple, kernel_rows, kernel_columns)
    for i in range(kernel_rows):
        for j in range(kernel_columns):
            out += view[:, :, None, :, :, i, j] * taps[None, :, :, i, j, None, None]
