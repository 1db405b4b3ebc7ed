"""The client's image: two shares, opened under a mask. One round, `bits` bits per element; both see uniform values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Mask, Source
from autorep.program import ir


class Input(Operation[ir.Input]):
    """`run` reads the party's share of the image, as if the input read itself."""

    def rounds(self) -> Iterator[Round]:
        yield Round(f"{self.op.name}/open", (Part(self.count, self.op.bits),))

    def correlations(self) -> Iterator[Mask]:
        yield Mask(f"{self.op.name}/mask", self.count, self.op.bits)

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        (mask,) = self.correlations()
        rho = source.draw(mask).reshape(self.batch, *self.op.shape)
        return rho, rho

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        (opening,) = self.rounds()
        return exchange.open(opening.label, [(inputs[0].data + material, self.op.bits)])[0]
