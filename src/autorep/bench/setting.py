"""How a program is measured: the link, the batch, the threads, the comparison, who makes kits, how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Setting:
    """One way to measure private inference between two processes."""

    link: Literal["loopback", "lan", "wan"] = "loopback"
    """loopback; lan: 1 GB/s and 0.1 ms round trip; wan: 100 Mb/s and 40 ms round trip."""
    batch: int = 1
    """Images in one query."""
    threads: int = 1
    """Threads of each party; with 1 each party is pinned to a core of its own."""
    comparison: Literal["dcf", "short", "bits"] | None = None
    """How a kept ReLU is compared; default is dcf with a dealer, bits without."""
    repeats: int = 7
    """Queries measured, each with fresh randomness; one more warms up."""
    preparation: Literal["dealer", "two-party", "ot"] = "dealer"
    """Who makes the correlated randomness: a dealer, or the two servers (by ring-LWE, or by transfers alone)."""

    @property
    def suffix(self) -> str:
        """What distinguishes it in a result's name."""
        told = {"link": "", "batch": "batch", "threads": "threads", "comparison": "", "preparation": ""}
        values = {name: getattr(self, name) for name in told if getattr(self, name) != getattr(USUAL, name)}
        return "".join(f"-{told[name]}{value}" for name, value in values.items())


USUAL = Setting()
