"""The classes of the largest values of a wire, and nothing else of it: a tournament whose values carry their class.

Class p enters with v = x·2**k − p (k = `bits`): a public X·2**k − p under the mask ρ·2**k. No two are equal.

1. A match of a and b is decided as in max pooling: max(a, b) = b + relu(a − b), by one of `comparisons`.
2. The winners of a layer are opened under fresh masks; the losers follow, for max + min = a + b: public A + B − M under
   the mask ρ_a + ρ_b − z.
3. After the last layer nothing is opened. Each party holds shares of the best values; −v modulo 2**k is the class p.

Rounds: one less than layers (`program/tournament.py`: ⌈log2 classes⌉ for one class), plus those of the comparison.
Sent per match: `ring` bits. Exact while two values differ by less than 2**(window − k) units.
The servers see uniform values. The client, who adds the shares modulo 2**k, sees the classes: no value enters them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autorep.mpc.comparisons import COMPARISONS
from autorep.mpc.online import Exchange
from autorep.mpc.operations.base import Masks, Operation, Value
from autorep.mpc.ring import U64, reduce
from autorep.mpc.signs import SignBatch, SignProtocol
from autorep.mpc.sizes import Part, Round
from autorep.mpc.verbs import Correlation, Mask, Source
from autorep.program import ir
from autorep.program.tournament import tournament


@dataclass(frozen=True)
class Layer:
    """Matches of places `first` and `second`; the last layer has no opening."""

    first: np.ndarray
    second: np.ndarray
    signs: SignProtocol
    winners: Mask
    opening: Round | None


@dataclass(frozen=True)
class Material:
    """Of every layer its comparisons, the masks of `second` and of the winners; the masks of all places at the end."""

    layers: list[tuple[Any, np.ndarray, np.ndarray | None]]
    masks: np.ndarray


class TopClasses(Operation[ir.TopClasses]):
    """Arrays are (places, batch)."""

    def __init__(self, op: ir.TopClasses, sources: Sequence[ir.Op], batch: int, comparison: str) -> None:
        super().__init__(op, sources, batch, comparison)
        self._played = tournament(sources[0].size, op.size)
        self._layers: list[Layer] = []
        for number, (first, second) in enumerate(self._played.layers):
            label, count = f"{op.name}/layer{number}", batch * len(first)
            signs = COMPARISONS[comparison](SignBatch(label, count, op.window, op.ring, 0))
            last = number == len(self._played.layers) - 1
            opening = None if last else Round(f"{label}/open", (Part(count, op.ring),))
            self._layers.append(Layer(first, second, signs, Mask(f"{label}/z", count, op.ring), opening))

    def rounds(self) -> Iterator[Round]:
        for layer in self._layers:
            yield from layer.signs.rounds()
            if layer.opening is not None:
                yield layer.opening

    def correlations(self) -> Iterator[Correlation]:
        for layer in self._layers:
            yield from layer.signs.correlations()
            if layer.opening is not None:
                yield layer.winners

    def comparisons(self) -> int:
        return self.batch * self._played.matches

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        places, layers = self._entering(masks[0]), []
        for layer in self._layers:
            left, right = places[layer.first], places[layer.second]
            difference = reduce(left - right, self.op.ring).reshape(-1)
            signs = layer.signs.correlate(source, difference, np.zeros_like(difference))
            fresh = None
            if layer.opening is not None:
                fresh = source.draw(layer.winners).reshape(left.shape)
                places[layer.first], places[layer.second] = fresh, left + right - fresh
            layers.append((signs, right, fresh))
        return Material(layers, places), None

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        places = self._entering(inputs[0].data) - np.arange(self.sources[0].size, dtype=np.uint64)[:, None]
        mine = U64(1 - exchange.party)  # what is public belongs to P0's share only
        for layer, (signs, right_mask, fresh) in zip(self._layers, material.layers):
            left, right = places[layer.first], places[layer.second]
            public = np.ascontiguousarray(left - right).reshape(-1)
            (gain,) = layer.signs.relu(exchange, signs, [public], np.zeros_like(public), 0)
            winners = gain.reshape(left.shape) + mine * right - right_mask
            if layer.opening is not None:
                (opened,) = exchange.open(layer.opening.label, [(winners + fresh, self.op.ring)])
                places[layer.first], places[layer.second] = opened, left + right - opened
        shares = mine * places - material.masks
        if self._layers:
            first, second = self._layers[-1].first, self._layers[-1].second
            shares[first], shares[second] = winners, shares[first] + shares[second] - winners
        return U64(0) - np.ascontiguousarray(shares[self._played.best].T)

    def _entering(self, values: np.ndarray) -> np.ndarray:
        """(batch, classes) to (classes, batch), multiplied by 2**k."""
        return np.ascontiguousarray(values.T) << U64(self.op.bits)
