"""Linear layers on wires: exactly one ring convolution per party online, no round.

A wire is a public X = x + ρ with ρ = ρ₀ + ρ₁. The weights are W = W₀ + W₁.

1. Once per model: the parties open F = W + B, B = B₀ + B₁ a mask that the dealer knows. F is a one-time pad of W and
   serves every query.
2. Per query, dealer: shares C₀ + C₁ = B∗ρ.
3. Per query, offline: Uᵢ = Cᵢ − F∗ρᵢ, so that U₀ + U₁ = −W∗ρ.
4. Online: yᵢ = Wᵢ∗X + Uᵢ + biasᵢ, and y₀ + y₁ = W∗x + bias.

Dealer to P1: one ring element per output. Nobody learns anything: F and X are one-time pads, C₀ is uniform.
"""

from __future__ import annotations

import numpy as np

from autorep import _native
from autorep.mpc.correlations import DealerTape, PartyTape
from autorep.mpc.ring import channel_view
from autorep.program import ir

LinearOp = ir.Conv | ir.Linear | ir.Affine


def weight_shape(op: LinearOp, in_shape: ir.Shape) -> ir.Shape:
    """Shape of an operation's weight, from public facts."""
    if isinstance(op, ir.Conv):
        return (op.shape[0], in_shape[0] // op.groups, *op.kernel)
    return (op.shape[0], in_shape[0]) if isinstance(op, ir.Linear) else (op.shape[0],)


class RingKernel:
    """A fixed ring weight, packed once, that multiplies (N, *in_shape) arrays."""

    def __init__(self, op: LinearOp, in_shape: ir.Shape, weight: np.ndarray) -> None:
        self._op = op
        self._plan: _native.PackedConv | _native.PackedMatmul | None = None
        if isinstance(op, ir.Conv):
            self._plan = _native.PackedConv(
                weight, in_shape, op.stride, op.padding, op.dilation, op.groups, bits=op.bits
            )
        elif isinstance(op, ir.Linear):
            self._plan = _native.PackedMatmul(weight, bits=op.bits)
        else:
            self._vector = channel_view(weight, op.shape)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        if self._plan is None:
            return self._vector * values
        return self._plan.run(np.ascontiguousarray(values))


def deal(tape: DealerTape, op: LinearOp, mask_kernel: RingKernel, rho: np.ndarray) -> None:
    """Step 2."""
    tape.share(f"{op.name}/cross", mask_kernel(rho))


def prepare(
    tape: PartyTape, op: LinearOp, opened_kernel: RingKernel, rho_share: np.ndarray, bias_share: np.ndarray
) -> np.ndarray:
    """Step 3, with the bias share added: what `run` adds to the convolution."""
    cross = tape.share(f"{op.name}/cross").reshape(-1, *op.shape)
    return cross - opened_kernel(rho_share) + channel_view(bias_share, op.shape)


def run(weight_kernel: RingKernel, opened: np.ndarray, offline: np.ndarray) -> np.ndarray:
    """Step 4."""
    share = weight_kernel(opened)
    share += offline
    return share
