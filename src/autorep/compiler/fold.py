"""Folding: every per-channel scale and shift (batch norm, average-pool factor, input normalisation, constants, lines)
disappears into a neighbouring convolution or linear layer where one is linear next to it; the rest stay `Affine`.

One behind a residual sum goes before it, into the convolution of one branch, and stays an `Affine` in the other: there
it reads what is open already, where behind the sum it would have to be opened for it, which takes two rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autorep.compiler.draft import Draft
from autorep.compiler.wires import needs_wires
from autorep.program.ir import Activation, Add, Affine, Conv, Flatten, Input, Linear, MaxPool, Op, Sign, SumPool
from autorep.program.windows import convolution


def fold_affine(draft: Draft) -> None:
    """Fold until nothing changes; in place, exact in float."""
    changed = True
    while changed:
        changed = False
        for name in list(draft.ops):
            op = draft.ops.get(name)  # may be gone, or rewired, since the list was made
            if isinstance(op, Affine):
                # the small factor of a mean costs no precision in the layer after it, where inputs are large sums
                onward_first = isinstance(draft.ops[op.inputs[0]], SumPool)
                first, second = (_fold_onward, _fold_back) if onward_first else (_fold_back, _fold_onward)
                changed |= first(draft, op) or second(draft, op) or _fold_apart(draft, op)


def _fold_back(draft: Draft, affine: Affine) -> bool:
    """y = s·(W·x + b) + t  ->  (s·W)·x + (s·b + t), also through a sum pool when there is no shift."""
    readers = draft.consumers()
    scale, shift = draft.parameter(affine.name, "weight"), draft.parameter(affine.name, "bias")
    source = draft.ops[affine.inputs[0]]
    if isinstance(source, SumPool) and not shift.any() and len(readers[source.name]) == 1:
        source = draft.ops[source.inputs[0]]
    if not isinstance(source, Conv | Linear | Affine) or len(readers[source.name]) != 1:
        return False
    weight, bias = draft.parameter(source.name, "weight"), draft.parameter(source.name, "bias")
    scaled = (weight * _along(scale, weight)).astype(weight.dtype)
    draft.set_parameters(source.name, weight=scaled, bias=bias * _along(scale, bias) + _along(shift, bias))
    draft.bypass(affine.name)
    return True


def _fold_onward(draft: Draft, affine: Affine) -> bool:
    """y = W·(s·x + t) + b  ->  (W·s)·x + (W·t + b) in every reader, when all of them are linear."""
    readers = draft.consumers()
    targets: list[Op] = []
    for reader in readers[affine.name]:
        behind = readers[reader.name] if isinstance(reader, Flatten) else []
        targets += behind or [reader]
    if not targets or not all(_takes(draft, target, affine) for target in targets):
        return False
    scale, shift = draft.parameter(affine.name, "weight"), draft.parameter(affine.name, "bias")
    for target in targets:
        weight, bias = draft.parameter(target.name, "weight"), draft.parameter(target.name, "bias")
        if isinstance(target, Conv):
            moved = _conv_of_constant(target, weight, shift, draft.ops[target.inputs[0]].shape)
            scaled = weight * _conv_scale(target, weight, scale)
        else:
            repeat = weight.shape[1] // len(scale)
            moved, scaled = weight @ np.repeat(shift, repeat), weight * np.repeat(scale, repeat)
        wide = bias.reshape(bias.shape + (1,) * (moved.ndim - bias.ndim)) + moved
        draft.set_parameters(target.name, weight=scaled.astype(weight.dtype), bias=wide)
    draft.bypass(affine.name)
    return True


def _fold_apart(draft: Draft, affine: Affine) -> bool:
    """y = s·(a + b) + t  ->  (s·a + t) + s·b, where each term is a layer that takes it or is open in any case."""
    readers = draft.consumers()
    total = draft.ops[affine.inputs[0]]
    if not isinstance(total, Add) or len(readers[total.name]) != 1:
        return False
    if not all(_absorbs(draft, name, readers) or _is_open(draft, name, readers) for name in total.inputs):
        return False
    scale, shift = draft.parameter(affine.name, "weight"), draft.parameter(affine.name, "bias")
    terms: list[str] = []
    for name in total.inputs:
        part = replace(affine, name=f"{affine.name}.term", inputs=(name,))
        terms.append(draft.insert(part, total.name, weight=scale, bias=0 * shift if terms else shift).name)
    draft.ops[total.name] = replace(total, inputs=tuple(terms))
    draft.bypass(affine.name)
    return True


def _absorbs(draft: Draft, name: str, readers: Mapping[str, Sequence[Op]]) -> bool:
    """Whether this is a layer whose weights take a scale and a shift behind it."""
    return isinstance(draft.ops[name], Conv | Linear | Affine) and len(readers[name]) == 1


def _is_open(draft: Draft, name: str, readers: Mapping[str, Sequence[Op]]) -> bool:
    """Whether the parties know this under a mask, by itself or because a multiplier reads it."""
    return isinstance(draft.ops[name], Input | Activation | Sign | MaxPool) or any(map(needs_wires, readers[name]))


def _takes(draft: Draft, target: Op, affine: Affine) -> bool:
    """Whether a scale and a shift for each channel of `affine` can move into a layer behind it."""
    if isinstance(target, Conv):
        return draft.ops[target.inputs[0]].shape[0] == affine.shape[0]
    return isinstance(target, Linear)


def _along(vector: np.ndarray, like: np.ndarray) -> np.ndarray:
    return vector.reshape(vector.shape + (1,) * (like.ndim - 1))


def _conv_scale(conv: Conv, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Input-channel scales laid out as the grouped weight is: (O, C/groups, 1, 1)."""
    per_group = scale.reshape(conv.groups, -1)
    return np.repeat(per_group, weight.shape[0] // conv.groups, axis=0)[:, :, None, None]


def _conv_of_constant(conv: Conv, weight: np.ndarray, shift: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What a constant per input channel adds to the output: one number per channel, or per position at the borders."""
    if not shift.any():
        return np.zeros(weight.shape[0])
    if any(conv.padding):
        plane = np.broadcast_to(shift[:, None, None], shape)[None]
        return convolution(plane, weight, conv.stride, conv.padding, conv.dilation, conv.groups)[0]
    smallest = (shape[0], *(d * (k - 1) + 1 for k, d in zip(conv.kernel, conv.dilation)))
    plane = np.broadcast_to(shift[:, None, None], smallest)[None]
    once = convolution(plane, weight, (1, 1), (0, 0), conv.dilation, conv.groups)
    return once.reshape(math.prod(once.shape))
