"""Product of two wires (the gate of a squeeze-excitation block): local, no round.

With X = x + ρ and G = g + γ public: x·g = X·G − X·γ − G·ρ + ρ·γ; the dealer shares ρ·γ (one ring element per output
to P1). Nobody learns anything.
"""

from __future__ import annotations

import numpy as np

from autorep.mpc.correlations import DealerTape, PartyTape
from autorep.program import ir


def deal(tape: DealerTape, op: ir.Product, rho: np.ndarray, gamma: np.ndarray) -> None:
    """The dealer's part: shares of ρ·γ."""
    tape.share(f"{op.name}/cross", rho * gamma)


def prepare(tape: PartyTape, op: ir.Product) -> np.ndarray:
    """This party's share of ρ·γ."""
    return tape.share(f"{op.name}/cross").reshape(-1, *op.shape)


def run(
    party: int,
    opened: tuple[np.ndarray, np.ndarray],
    masks: tuple[np.ndarray, np.ndarray],
    offline: np.ndarray,
) -> np.ndarray:
    """This party's share of the product."""
    (x, g), (rho, gamma) = opened, masks
    public = x * g if party == 0 else np.uint64(0)
    return public - x * gamma - g * rho + offline
