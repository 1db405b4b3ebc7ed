"""Values computed from the input, and moving their elements about without computing anything.

A Live value is one operation's result, or elements of several results picked in some order, zeros included. Whatever
only moves elements (views, slices, concatenations, padding, channel shuffles, up-sampling …) is followed by running
torch's own function on the elements' numbers; nothing is emitted before something computes with the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

ZERO = -1  # the number of an element that is zero


class Unsupported(Exception):
    """Raised by a rule; the message says what to use instead."""


@dataclass(frozen=True, eq=False)
class Live:
    """A value of `shape` (batch first when it is used) whose elements come from the results of `sources`.

    index: None when the value is the first source's result in order (of any shape); otherwise, for each element, its
        position in the flat results of all sources, each with its batch, one after the other; ZERO for a zero.
    """

    sources: tuple[str, ...]
    shape: tuple[int, ...]
    index: Tensor | None = field(default=None, repr=False)

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.shape[1:]


def move(function: Callable[..., Any], args: Any, kwargs: Any, sizes: Mapping[str, int], exact: bool = True) -> Any:
    """Apply a function that only moves elements; Live values in, Live values out, constants among them taken for zeros.

    Arguments:
        sizes: elements of every operation's result, the whole batch.
        exact: whether the function takes integers; otherwise the numbers travel as float64.
    """
    lives = [value for value in _leaves((args, kwargs)) if isinstance(value, Live)]
    sources = tuple(dict.fromkeys(name for live in lives for name in live.sources))
    starts = dict(zip(sources, np.cumsum([0, *(sizes[name] for name in sources)]).tolist()))

    def numbers(value: Any) -> Any:
        if isinstance(value, Live):
            index = _numbers(value, sizes, starts) + 1  # zeros of padding and constants become the number of a zero
            return index if exact else index.double()
        if _is_constant(value):
            return torch.zeros(value.shape, dtype=torch.int64 if exact else torch.float64)
        return value

    result = function(*_mapped(args, numbers), **_mapped(kwargs, numbers))

    def live(value: Any) -> Any:
        return Live(sources, tuple(value.shape), value.long() - 1) if isinstance(value, Tensor) else value

    return _mapped(result, live)


def moved_constants(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What the same function makes of the constants among zeros for all Live values; None when it moves no constant."""
    if not any(_is_constant(value) and bool(value.any()) for value in _leaves((args, kwargs))):
        return None

    def numbers(value: Any) -> Any:
        if isinstance(value, Live):
            return torch.zeros(value.shape, dtype=torch.float64)
        return value.double() if _is_constant(value) else value

    return function(*_mapped(args, numbers), **_mapped(kwargs, numbers))


def per_image(live: Live, sizes: Mapping[str, int], batch: int) -> np.ndarray:
    """For each element of one image, its position in the concatenated results of the sources for one image, or ZERO.

    Raises Unsupported when the images of a batch mix.
    """
    if live.shape[:1] != (batch,):
        raise Unsupported(f"a value of shape {live.shape} for {batch} images; keep the batch first")
    starts = dict(zip(live.sources, np.cumsum([0, *(sizes[name] for name in live.sources)]).tolist()))
    numbers = _numbers(live, sizes, starts).reshape(batch, -1).numpy()
    result = np.full(numbers.shape, ZERO, np.int64)
    for name in live.sources:
        start, size = starts[name], sizes[name] // batch
        own = (numbers >= start) & (numbers < start + sizes[name])
        image, position = np.divmod(numbers - start, size)
        if (own & (image != np.arange(batch)[:, None])).any():
            raise Unsupported("it mixes the images of a batch; keep the batch first and each image for itself")
        result[own] = position[own] + start // batch
    if (result != result[0]).any():
        raise Unsupported("it treats the images of a batch differently; keep the batch first")
    return result[0]


def expanded(live: Live, shape: Sequence[int], sizes: Mapping[str, int]) -> Live:
    """Broadcast as torch does."""
    return live if tuple(shape) == live.shape else move(Tensor.expand, (live, tuple(shape)), {}, sizes)


def is_whole(live: Live) -> bool:
    return live.index is None


def _is_constant(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _numbers(live: Live, sizes: Mapping[str, int], starts: Mapping[str, int]) -> Tensor:
    """The live value's elements, numbered by their place among all sources that start at `starts`."""
    if live.index is None:
        return torch.arange(math.prod(live.shape)).reshape(live.shape) + starts[live.sources[0]]
    own = dict(zip(live.sources, np.cumsum([0, *(sizes[name] for name in live.sources)]).tolist()))
    if all(own[name] == starts[name] for name in live.sources):
        return live.index
    result = live.index.clone()
    for name in live.sources:
        inside = (live.index >= own[name]) & (live.index < own[name] + sizes[name])
        result[inside] += starts[name] - own[name]
    return result


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return _leaves(list(value.values())) if isinstance(value, dict) else [value]


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return change(value)
