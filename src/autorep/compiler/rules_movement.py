"""Rules of everything that only moves elements: torch's own function, run on the elements' numbers."""

from __future__ import annotations

from typing import Any

import torch

from autorep.compiler.live import Live, Unsupported, expanded
from autorep.compiler.translate import Translator, rule

# Functions that move integers as they are.
MOVES = (
    "permute", "transpose", "t", "movedim", "select", "slice", "split", "split_with_sizes", "chunk", "unbind",
    "narrow", "repeat", "repeat_interleave", "cat", "stack", "index", "index_select", "flip", "roll", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "slice_scatter", "select_scatter", "diagonal", "tile", "rot90", "fliplr",
    "flipud", "unfold", "tril", "triu", "hstack", "vstack", "dstack", "gather", "scatter", "take_along_dim",
)  # fmt: skip
# Functions that torch has for floating point only.
MOVES_FLOAT = (
    "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d",
    "upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "im2col",
)  # fmt: skip
SAME = ("clone", "contiguous", "detach", "alias", "lift_fresh_copy")


def moves(function: Any, exact: bool) -> Any:
    """The rule of one function that moves elements."""

    def apply(to: Translator, *args: Any, **kwargs: Any) -> Any:
        return to.move(function, *args, exact=exact, **kwargs)

    return apply


for _name in (*MOVES, *MOVES_FLOAT):
    rule(_name)(moves(getattr(torch.ops.aten, _name), _name in MOVES))


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
def reshape(to: Translator, x: Live, *args: Any, **kwargs: Any) -> Live:
    """The result's shape decides, whatever the arguments."""
    return to.reshape(x, to.wanted)


@rule("expand", "expand_as")
def expand(to: Translator, x: Live, *args: Any, **kwargs: Any) -> Live:
    return expanded(x, to.wanted, to.sizes)


@rule(*SAME)
def same(to: Translator, x: Live, *args: Any, **kwargs: Any) -> Live:
    return x


@rule("dropout", "feature_dropout", "alpha_dropout")
def dropout(to: Translator, x: Live, p: float, train: bool) -> Live:
    if train:
        raise Unsupported("dropout with training=True; pass training=self.training and call eval()")
    return x


@rule("type_as")
def type_as(to: Translator, x: Any, like: Any) -> Any:
    return x if isinstance(like, Live) else cast(to, x, dtype=like.dtype)


@rule("_to_copy", "to")
def cast(to: Translator, x: Live, *args: Any, dtype=None, **kwargs: Any) -> Live:
    if dtype not in (None, torch.float32, torch.float64):
        raise Unsupported(f"a cast to {dtype}; values are real numbers in a program: leave it out, autocast included")
    return x


@rule("zeros_like", "zero")
def zeros_like(to: Translator, x: Live, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(x.shape)


@rule("ones_like")
def ones_like(to: Translator, x: Live, **kwargs: Any) -> torch.Tensor:
    return torch.ones(x.shape)


@rule("full_like")
def full_like(to: Translator, x: Live, value: Any, **kwargs: Any) -> torch.Tensor:
    return torch.full(x.shape, float(value))


@rule("new_zeros")
def new_zeros(to: Translator, x: Live, size: Any, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(size)


@rule("new_ones")
def new_ones(to: Translator, x: Live, size: Any, **kwargs: Any) -> torch.Tensor:
    return torch.ones(size)


@rule("new_full")
def new_full(to: Translator, x: Live, size: Any, value: Any, **kwargs: Any) -> torch.Tensor:
    return torch.full(size, float(value))


@rule("copy")
def copy(to: Translator, x: Any, y: Any, non_blocking: bool = False) -> Any:
    """x.copy_(y): y, in x's shape."""
    return expanded(y, x.shape, to.sizes) if isinstance(y, Live) else y.expand(x.shape)


@rule("fill")
def fill(to: Translator, x: Any, value: Any) -> torch.Tensor:
    return torch.full(x.shape, float(value))


@rule("index_put")
def index_put(to: Translator, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Live:
    """x[:, [0, 3]] = values."""
    if accumulate:
        raise Unsupported("adding at repeated positions; use +")
    return to.move(torch.ops.aten.index_put, x, indices, values)


@rule("where")
def where(to: Translator, condition: Any, x: Any, y: Any) -> Live:
    """One or the other by a constant mask."""
    _constant_mask(condition)
    return to.move(torch.where, condition, *(_real(value) for value in (x, y)))


@rule("masked_fill")
def masked_fill(to: Translator, x: Any, mask: Any, value: Any) -> Live:
    return where(to, mask, value, x)


def _constant_mask(mask: Any) -> None:
    if isinstance(mask, Live):
        raise Unsupported("a choice by a comparison of computed values; use ReLU, maximum, clamp or an activation")


def _real(value: Any) -> Any:
    """A number as a tensor of the kind that stands for constants."""
    return value if isinstance(value, Live) else torch.as_tensor(value, dtype=torch.float64)


@rule("pad")
def pad(to: Translator, x: Live, sides: Any, mode: str = "constant", value: Any = None) -> Live:
    if mode == "constant":
        return constant_pad(to, x, sides, value or 0.0)
    return to.move(torch.ops.aten.pad, x, sides, mode, exact=False)


@rule("constant_pad_nd")
def constant_pad(to: Translator, x: Live, sides: Any, value: float = 0.0) -> Live:
    """Zeros, or another number: then zeros around x less that number, which is added to everything."""
    if value:
        return to.affine(constant_pad(to, to.affine(x, 1.0, -value), sides), 1.0, float(value))
    return to.move(torch.ops.aten.constant_pad_nd, x, sides)
