"""Queries a second in steady state, and what a million of them cost, from parts measured on this machine.

Dealer, server 0 and server 1 run on machines of their own, all alike, with clients elsewhere; as many queries are in
flight as keep the busiest of them busy. Then throughput is that of the busiest resource: what each query takes of every
processor and link is known (`rehearsal.py`, `cost.py`), and the one that is used up first decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autorep.mpc.cost import LINKS, PARTIES, Cost
from autorep.mpc.rehearsal import Rehearsal

SERVICE_SECONDS = 0.004  # of a server's processor for one query: HTTP, its TLS, decisions, storing kits (`bench cost`)


@dataclass(frozen=True)
class Steady:
    """Queries a second that each resource alone would allow; the least of them is what the three machines do."""

    limits: dict[str, float]
    euros_per_hour: float

    @property
    def per_second(self) -> float:
        return min(self.limits.values())

    @property
    def busiest(self) -> str:
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def euros_per_million(self) -> float:
        """Of three machines."""
        return 3 * self.euros_per_hour / 3600 / self.per_second * 1e6

    def to_json(self) -> dict[str, Any]:
        facts = {"per_second": self.per_second, "busiest": self.busiest, "euros_per_million": self.euros_per_million}
        return {**facts, "limits": self.limits}


def steady_state(counted: Cost, rehearsed: Rehearsal, link: str, cores: int, euros_per_hour: float) -> Steady:
    """Of machines with so many cores; queries of `counted.batch` images count as so many."""
    rate = LINKS[link].rate
    online = rehearsed.latency(counted, "loopback")["compute_seconds"]
    server = rehearsed.prepare_seconds + online + counted.batch * SERVICE_SECONDS
    each = {
        "the dealer's processor": rehearsed.dealer_seconds / cores,
        "a server's processor": server / cores,
        "the link between the servers": counted.online_bytes_per_party / rate,
        "the dealer's link": sum(counted.offline_bytes(party) for party in PARTIES) / rate,
    }
    return Steady({name: counted.batch / seconds for name, seconds in each.items()}, euros_per_hour)
