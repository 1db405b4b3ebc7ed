"""Which comparison protocol suits a program and a link, by the cost model.

Counted is what one query occupies: its online latency, and the time its kits take from the dealer over a link of the
same kind (both go out together; the larger decides). Keys cost bytes and save rounds, bits the other way round. The
model's own constants decide, not the speed of the machine: two servers, and whoever prepares for them, choose alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autorep.mpc.comparisons import COMPARISONS, ComparisonName
from autorep.mpc.cost import LINKS, Cost, cost
from autorep.mpc.two_party.names import checked_comparison
from autorep.program.ir import Program


@dataclass(frozen=True)
class Choice:
    """One query by every protocol."""

    costs: Mapping[ComparisonName, Cost]

    def seconds(self, comparison: ComparisonName, link: str) -> float:
        """What a query occupies, online and for its kits."""
        counted = self.costs[comparison]
        kits = max(counted.offline_bytes(party) for party in (0, 1))
        return counted.latency(link)["seconds"] + kits / LINKS[link].rate

    def best(self, link: str) -> ComparisonName:
        """The protocol that occupies the least; of equals the first in the table of protocols."""
        return min(self.costs, key=lambda comparison: self.seconds(comparison, link))

    def to_json(self) -> dict[str, Any]:
        """Per protocol rounds and kits, and seconds by link; the best by link."""
        return {
            "choices": {
                name: {
                    "rounds": counted.rounds,
                    "offline_bytes": sum(counted.offline_bytes(party) for party in (0, 1)),
                    "seconds": {link: self.seconds(name, link) for link in LINKS},
                }
                for name, counted in self.costs.items()
            },
            "best": {link: self.best(link) for link in LINKS},
        }


def chosen(
    program: Program, comparison: ComparisonName | Literal["auto"] | None, preparation: str, link: str = "lan"
) -> ComparisonName:
    """The protocol to use: the one asked for, else with a dealer the best for the link, without one the only one."""
    if preparation != "dealer" or comparison not in (None, "auto"):
        return checked_comparison(preparation, None if comparison == "auto" else comparison)
    return choices(program).best(link) if program.relu_count else "dcf"


def choices(program: Program, batch: int = 1) -> Choice:
    """Count one query of `batch` images by every protocol, with a dealer."""
    names: tuple[ComparisonName, ...] = tuple(COMPARISONS)  # type: ignore[arg-type]  # the table's keys are the names
    return Choice({name: cost(program, batch, name) for name in names})
