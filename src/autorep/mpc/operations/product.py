"""Product of two wires (the gate of a squeeze-excitation block): local, no round.

With X = x + ρ and G = g + γ public: x·g = X·G − X·γ − G·ρ + ρ·γ, where ρ·γ is a correlation (`verbs.Product`).
Nobody learns anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autorep.mpc import verbs
from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.program import ir


class Product(Operation[ir.Product]):
    """Reads both wires as public values and as shares of their masks."""

    reads_shares = True

    def correlations(self) -> Iterator[verbs.Product]:
        yield verbs.Product(f"{self.op.name}/cross", self.count, self.op.bits, self.opened)

    def multiplications(self) -> int:
        return 3 * self.count

    def correlate(self, source: verbs.Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        (cross,) = self.correlations()
        return source.draw(cross, *masks), source.owed(cross)

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        x, g = inputs
        assert x.mask is not None
        assert g.mask is not None
        public = x.data * g.data if exchange.party == 0 else np.uint64(0)
        return public - x.data * g.mask - g.data * x.mask + material
