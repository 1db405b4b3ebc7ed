"""The cost model: rounds, bytes, key material, multiplications and latency of a Program, before any run.

Every number but the latency is exact: it comes from the inventory that the parties and the dealer themselves follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.dealt import kit_items
from autorep.mpc.kit import HEADER_BYTES, TAG_BYTES
from autorep.mpc.operations import Operation, protocols
from autorep.mpc.transport import FRAME_OVERHEAD
from autorep.mpc.two_party.cost import PreparationCost, preparation_cost
from autorep.mpc.two_party.names import PreparationName
from autorep.mpc.two_party.stored import tensors
from autorep.program.ir import Program

PARTIES = (0, 1)


@dataclass(frozen=True)
class Link:
    """Bandwidth and one-way delay; None leaves the loopback as it is."""

    bytes_per_second: float | None = None
    one_way_delay: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second, on the loopback those of TLS."""
        return self.bytes_per_second or ONE_CORE.loopback_bytes


LINKS = {
    "loopback": Link(),
    "lan": Link(1e9, 0.0001 / 2),  # 1 GB/s, 0.1 ms round trip
    "wan": Link(100e6 / 8, 0.040 / 2),  # 100 Mb/s, 40 ms round trip
}


@dataclass(frozen=True)
class Speed:
    """What one server is taken to compute per second, one AVX-512 core; only the latency estimate depends on it."""

    multiplications: float = 20e9
    comparisons: Mapping[ComparisonName, float] = field(
        default_factory=lambda: {"dcf": 7e6, "short": 20e6, "bits": 30e6}
    )
    elements: float = 70e6  # masked, packed, opened and unpacked
    round_seconds: float = 2e-4  # of every exchange, whatever it carries
    loopback_bytes: float = 1.5e9  # TLS on one machine


ONE_CORE = Speed()


@dataclass(frozen=True)
class LayerCost:
    """One operation of one query.

    Attributes:
        online_bytes: sent by each party, frame headers included.
        offline_bytes: correlated randomness that each party's kit holds.
        comparisons: DCF evaluations (kept ReLUs times knots, max-pool matches).
    """

    name: str
    operation: str
    shape: tuple[int, ...]
    rounds: int
    online_bytes: int
    offline_bytes: tuple[int, int]
    ring_multiplications: int
    comparisons: int
    opened: int


@dataclass(frozen=True)
class Cost:
    """All operations of one query of `batch` images."""

    batch: int
    comparison: ComparisonName
    layers: tuple[LayerCost, ...]
    input_bytes: int
    model_bytes: int
    preparing: PreparationCost | None = None  # what the servers send each other where no dealer prepares

    @property
    def rounds(self) -> int:
        return sum(layer.rounds for layer in self.layers)

    @property
    def online_bytes_per_party(self) -> int:
        return sum(layer.online_bytes for layer in self.layers)

    def offline_bytes(self, party: int) -> int:
        """One kit on disk or on the dealer's link: header and tag included."""
        return HEADER_BYTES + TAG_BYTES + sum(layer.offline_bytes[party] for layer in self.layers)

    @property
    def ring_multiplications(self) -> int:
        return sum(layer.ring_multiplications for layer in self.layers)

    @property
    def comparisons(self) -> int:
        return sum(layer.comparisons for layer in self.layers)

    def latency(self, link: str, speed: Speed = ONE_CORE) -> dict[str, float]:
        """Estimated seconds of one query on a named link: network, compute and both.

        A round costs one one-way delay, its own processor time and the time its bytes take; computing and sending do
        not overlap.
        """
        chosen = LINKS[link]
        rate = chosen.bytes_per_second or speed.loopback_bytes
        network = self.rounds * chosen.one_way_delay + self.online_bytes_per_party / rate
        compute = (
            self.ring_multiplications / speed.multiplications
            + self.comparisons / speed.comparisons[self.comparison]
            + sum(layer.opened for layer in self.layers) / speed.elements
            + self.rounds * speed.round_seconds
        )
        return {"network_seconds": network, "compute_seconds": compute, "seconds": network + compute}

    def making_latency(self, link: str) -> dict[str, float]:
        """Estimated seconds of making one query's kits between the servers: network, compute and both."""
        if self.preparing is None:
            raise ValueError("a dealer makes these kits")
        return self.preparing.seconds(LINKS[link].rate, LINKS[link].one_way_delay)

    def _preparing_json(self) -> dict[str, Any]:
        if self.preparing is None:
            return {}
        return {**self.preparing.to_json(), "preparing_latency": {name: self.making_latency(name) for name in LINKS}}

    def to_json(self) -> dict[str, Any]:
        """Plain values, totals first."""
        offline = [self.offline_bytes(party) for party in PARTIES]
        return {
            "batch": self.batch,
            "comparison": self.comparison,
            "rounds": self.rounds,
            "online_bytes_per_party": self.online_bytes_per_party,
            "offline_bytes": sum(offline),
            "offline_bytes_party0": offline[0],
            "offline_bytes_party1": offline[1],
            "input_bytes_per_party": self.input_bytes,
            "model_bytes_per_party": self.model_bytes,
            "ring_multiplications": self.ring_multiplications,
            "comparisons": self.comparisons,
            **self._preparing_json(),
            "latency": {name: self.latency(name) for name in LINKS},
            "layers": [
                {
                    "name": layer.name,
                    "operation": layer.operation,
                    "shape": list(layer.shape),
                    "rounds": layer.rounds,
                    "online_bytes_per_party": layer.online_bytes,
                    "offline_bytes": sum(layer.offline_bytes),
                    "ring_multiplications": layer.ring_multiplications,
                    "comparisons": layer.comparisons,
                }
                for layer in self.layers
            ],
        }


def cost(
    program: Program, batch: int = 1, comparison: ComparisonName = "dcf", preparation: PreparationName = "dealer"
) -> Cost:
    """Count one query; the program's public part is enough."""
    layers = []
    for operation in protocols(program, batch, comparison):
        op, exchanged = operation.op, list(operation.rounds())
        layers.append(
            LayerCost(
                op.name,
                type(op).__name__,
                op.shape,
                len(exchanged),
                sum(entry.bytes + FRAME_OVERHEAD for entry in exchanged),
                _kit_bytes(operation, preparation),
                operation.multiplications(),
                operation.comparisons(),
                sum(part.count for entry in exchanged for part in entry.parts),
            )
        )
    model = sum(8 * value.size for value in program.parameters.values())
    preparing = None if preparation == "dealer" else preparation_cost(program, batch=batch, preparation=preparation)
    return Cost(batch, comparison, tuple(layers), 8 * batch * program.input.size, model, preparing)


def _kit_bytes(operation: Operation, preparation: str) -> tuple[int, int]:
    """What each party's kit holds of one operation."""
    if preparation == "dealer":
        items = list(kit_items(operation))
        return sum(item.bytes_to(0) for item in items), sum(item.bytes_to(1) for item in items)
    alike = sum(part.bytes for c in operation.correlations() for part in tensors(c))
    return alike, alike
