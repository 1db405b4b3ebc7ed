"""Two 3×3 convolutions with nothing between them become one larger one: an opening and its two rounds are saved.

Such pairs arise where an activation became a straight line, which was folded away. With s the first one's stride, the
merged kernel has 2s + 3 rows and columns and stride s. It is exact inside the image. At the border, the second
convolution reads zeros around the first one's result where the merged one reads that result's continuation; what this
adds is a convolution of a single row or column of the input, and is subtracted (corners, subtracted twice, are added
once).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autorep.compiler.draft import Draft
from autorep.program.ir import Add, Conv, Gather, Op
from autorep.program.windows import convolution

MOST_WORK = 2.0  # multiplications of the merged convolution, as a multiple of those of both


def merge_convolutions(draft: Draft) -> None:
    """Merge every pair that can be; in place, exact in float."""
    readers = draft.consumers()
    for name in list(draft.ops):
        second = draft.ops.get(name)
        if not isinstance(second, Conv):
            continue
        first = draft.ops[second.inputs[0]]
        if isinstance(first, Conv) and len(readers[first.name]) == 1 and _fit(draft, first, second):
            _merge(draft, first, second)


def _fit(draft: Draft, first: Conv, second: Conv) -> bool:
    plain = all(
        (op.kernel, op.padding, op.dilation, op.groups) == ((3, 3), (1, 1), (1, 1), 1) for op in (first, second)
    )
    if not plain or second.stride != (1, 1) or first.stride not in ((1, 1), (2, 2)):
        return False
    source = draft.ops[first.inputs[0]]
    apart = 9 * first.shape[0] * (source.shape[0] + second.shape[0])
    return (2 * first.stride[0] + 3) ** 2 * source.shape[0] * second.shape[0] <= MOST_WORK * apart


@dataclass(frozen=True)
class _Edge:
    """One side of the image along one axis: where the continuation beyond it comes from, and where it goes.

    Attributes:
        outer: row of the second kernel that reads it; inner: row of the first kernel that makes it.
        read: row of the input; write: row of the result.
    """

    outer: int
    inner: int
    read: int
    write: int


def _edges(stride: int, size: int, result: int) -> Iterator[_Edge]:
    for outer, beyond, write in ((0, -1, 0), (2, result, result - 1)):
        for inner in range(3):
            read = stride * beyond + inner - 1
            if 0 <= read < size:
                yield _Edge(outer, inner, read, write)


def _merge(draft: Draft, first: Conv, second: Conv) -> None:
    stride = first.stride[0]
    source = draft.ops[first.inputs[0]]
    inner, outer = (np.asarray(draft.parameter(op.name, "weight"), np.float64) for op in (first, second))
    bias = _bias(draft, first, second, outer)
    reach, padding = 2 * stride + 3, stride + 1
    weight = np.zeros((len(outer), inner.shape[1], reach, reach))
    for row in range(3):
        for column in range(3):
            part = np.tensordot(outer[:, :, row, column], inner, 1)
            weight[:, :, stride * row : stride * row + 3, stride * column : stride * column + 3] += part
    whole: dict[str, Any] = {"kernel": (reach, reach), "stride": first.stride, "padding": (padding, padding)}
    merged = dataclasses.replace(second, inputs=first.inputs, name=f"{second.name}.merged", **whole)
    following = list(draft.ops.values())
    at = [op.name for op in following].index(second.name)
    parts = Draft(parameters=draft.parameters)
    parts.add(merged, weight=weight, bias=bias)
    shares = [merged.name, *_corrections(parts, second, source, inner, outer, stride)]
    total = Add(name=second.name, inputs=tuple(shares), shape=second.shape, kind="sum", bits=0, frac=0)
    for key in second.parameter_names:
        draft.parameters.pop(f"{second.name}.{key}")
    new = [*following[:at], *parts.ops.values(), total, *following[at + 1 :]]
    draft.ops = {op.name: op for op in new if op.name != first.name}
    for key in first.parameter_names:
        draft.parameters.pop(f"{first.name}.{key}")


def _bias(draft: Draft, first: Conv, second: Conv, outer: np.ndarray) -> np.ndarray:
    """The first one's bias through the second, zeros around it; one number per position where it is not zero."""
    own, before = (np.asarray(draft.parameter(op.name, "bias"), np.float64) for op in (second, first))
    if not before.any():
        return own
    plane = np.broadcast_to(before.reshape(before.shape + (1,) * (3 - before.ndim)), first.shape)[None]
    through = convolution(plane, outer, second.stride, second.padding, second.dilation, second.groups)[0]
    return through + own.reshape(own.shape + (1,) * (3 - own.ndim))


def _corrections(
    parts: Draft, second: Conv, source: Op, inner: np.ndarray, outer: np.ndarray, stride: int
) -> list[str]:
    """Operations that take the continuation beyond every edge away again; names of their results."""
    _, height, width = source.shape
    _, rows, columns = second.shape
    vertical, horizontal = list(_edges(stride, height, rows)), list(_edges(stride, width, columns))
    names: list[str] = []
    place: tuple[Any, Any]
    for edge in vertical:
        line = _composed(outer[:, :, edge.outer, :], inner[:, :, edge.inner, :], stride)[:, :, None, :]
        place = (edge.read, slice(None)), (edge.write, slice(None))
        names.append(_strip(parts, second, source, -line, place, (1, stride)))
    for edge in horizontal:
        line = _composed(outer[:, :, :, edge.outer], inner[:, :, :, edge.inner], stride)[:, :, :, None]
        place = (slice(None), edge.read), (slice(None), edge.write)
        names.append(_strip(parts, second, source, -line, place, (stride, 1)))
    for v in vertical:
        for h in horizontal:
            point = outer[:, :, v.outer, h.outer] @ inner[:, :, v.inner, h.inner]
            place = (v.read, h.read), (v.write, h.write)
            names.append(_strip(parts, second, source, point[:, :, None, None], place, (1, 1)))
    return names


def _composed(outer: np.ndarray, inner: np.ndarray, stride: int) -> np.ndarray:
    """(O, M, 3) after (M, C, 3) along one axis: (O, C, 2·stride + 3)."""
    line = np.zeros((len(outer), inner.shape[1], 2 * stride + 3))
    for tap in range(3):
        line[:, :, stride * tap : stride * tap + 3] += np.tensordot(outer[:, :, tap], inner, 1)
    return line


def _strip(
    parts: Draft, second: Conv, source: Op, weight: np.ndarray, place: tuple[Any, Any], stride: tuple[int, int]
) -> str:
    """Some of the input's positions, convolved, and put where they belong in the result, zeros elsewhere."""
    read, write = place
    taken = np.arange(math.prod(source.shape)).reshape(source.shape)[:, read[0], read[1]]
    kernel = weight.shape[2], weight.shape[3]
    sides = [size if side > 1 else 1 for size, side in zip(source.shape[1:], kernel)]
    outs = [size if side > 1 else 1 for size, side in zip(second.shape[1:], kernel)]
    common: dict[str, Any] = {"kind": "sum", "bits": 0, "frac": 0}
    name = f"{second.name}.edge"
    part = parts.add(
        Gather(name=name, inputs=(source.name,), shape=(source.shape[0], *sides), index=taken.ravel(), **common)
    )
    padding = tuple((side - 1) // 2 for side in kernel)
    conv = parts.add(
        Conv(
            name=name, inputs=(part.name,), shape=(second.shape[0], *outs), weight_frac=0, kernel=kernel,
            stride=stride, padding=padding, **common,
        ),
        weight=weight,
        bias=np.zeros(second.shape[0]),
    )  # fmt: skip
    index = np.full(second.shape, -1)
    index[:, write[0], write[1]] = np.arange(math.prod(conv.shape)).reshape(index[:, write[0], write[1]].shape)
    return parts.add(Gather(name=name, inputs=(conv.name,), shape=second.shape, index=index.ravel(), **common)).name
