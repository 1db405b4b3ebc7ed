"""An operation in one file: the square of a wire, x² = X² − 2·X·ρ + ρ²; local, no round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autorep.mpc import verbs
from autorep.mpc.online import Exchange
from autorep.mpc.operations import Operation, Value
from autorep.program import ir


@dataclass(frozen=True, kw_only=True)
class Square(ir.Op):
    """Element-wise square of a wire: a sum."""


class SquareProtocol(Operation[Square]):
    """Everything the engine knows about it."""

    reads_shares = True

    def correlations(self) -> Iterator[verbs.Product]:
        yield verbs.Product(f"{self.op.name}/square", self.count, self.op.bits, self.opened)

    def multiplications(self) -> int:
        return 2 * self.count

    def correlate(self, source: verbs.Source, masks: Sequence[np.ndarray]) -> tuple[Any, np.ndarray | None]:
        (square,) = self.correlations()
        return source.draw(square, masks[0], masks[0]), source.owed(square)

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        x, rho = inputs[0].data, inputs[0].mask
        assert rho is not None
        public = x * x if exchange.party == 0 else np.uint64(0)
        return public - np.uint64(2) * x * rho + material
