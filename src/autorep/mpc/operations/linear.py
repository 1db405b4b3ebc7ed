"""Linear layers on wires: exactly one ring convolution per party online, no round.

A wire is a public X = x + ρ with ρ = ρ₀ + ρ₁. The weights are W = W₀ + W₁.

1. Per query, offline: U₀ + U₁ = −W∗ρ (`verbs.LinearImage`), less what a dealer owes.
2. Online: yᵢ = Wᵢ∗X + Uᵢ + biasᵢ, and y₀ + y₁ = W∗x + bias, less what is owed.

Nobody learns anything: X is a one-time pad, and nothing else arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.ring import channel_view
from autorep.mpc.verbs import LinearImage, Source
from autorep.program import ir

LinearOp = ir.Conv | ir.Linear | ir.Affine


class RingKernel:
    """A fixed ring weight, packed once, that multiplies (N, *in_shape) arrays."""

    def __init__(self, op: LinearOp, in_shape: ir.Shape, weight: np.ndarray, lean: bool = False) -> None:
        self._packed: _native.PackedConv | _native.PackedMatmul | None = None
        if isinstance(op, ir.Conv):
            self._packed = _native.PackedConv(
                weight, in_shape, op.stride, op.padding, op.dilation, op.groups, op.bits, "lean" if lean else "auto"
            )
        elif isinstance(op, ir.Linear):
            self._packed = _native.PackedMatmul(weight, bits=op.bits)
        else:
            self._vector = channel_view(weight, op.shape)

    def __call__(
        self, values: np.ndarray, onto: np.ndarray | None = None, bias: np.ndarray | None = None
    ) -> np.ndarray:
        """The product; added to `onto`, in place, and to a bias of every channel, where given."""
        if self._packed is not None:
            return self._packed.run(np.ascontiguousarray(values), onto, bias)
        product = self._vector * values
        if bias is not None:
            product += bias.reshape(self._vector.shape)
        return product if onto is None else np.add(onto, product, out=onto)


class Linear(Operation[LinearOp]):
    """Convolution, matrix product and per-channel scale alike."""

    def correlations(self) -> Iterator[LinearImage]:
        yield LinearImage(f"{self.op.name}/cross", self.count, self.op, self.opened)

    def fixed(self) -> Mapping[str, ir.Shape]:
        op, channels = self.op, self.sources[0].shape[0]
        if isinstance(op, ir.Conv):
            return {"weight": (op.shape[0], channels // op.groups, *op.kernel)}
        return {"weight": (op.shape[0], channels) if isinstance(op, ir.Linear) else (op.shape[0],)}

    def pack(self, parameter: str, tensor: np.ndarray, lean: bool = False) -> Any:
        return RingKernel(self.op, self.sources[0].shape, tensor, lean) if parameter == "weight" else tensor

    def multiplications(self) -> int:
        return self.count * int(np.prod(self.fixed()["weight"][1:]))

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        (image,) = self.correlations()
        return source.draw(image, masks[0]), source.owed(image)

    def prepare(self, material: Any, own: Mapping[str, Any]) -> Any:
        if own["bias"].ndim > 1:  # another at every place of a channel
            material += own["bias"]
        return material

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        bias = own["bias"] if own["bias"].ndim == 1 else None
        share: np.ndarray = own["weight"](inputs[0].data, material, bias)
        return share
