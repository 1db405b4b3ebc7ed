"""The seam between a party and whatever prepares its correlated randomness: a dealer, or the two servers themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from autorep.mpc.operations import Operation
from autorep.mpc.verbs import Source


class QuerySource(Source):
    """One party's parts of all correlations of one query: what `Party.prepare` takes.

    Attributes:
        kit_id: names the query's randomness, the same at both parties.
        party, batch, comparison, program_hash: what it was made for; `Party.prepare` compares them.
    """

    kit_id: bytes
    party: int
    batch: int
    comparison: str
    program_hash: bytes


class Preparation(ABC):
    """One party's side of one way to prepare, for one model: what `Party.setup` takes."""

    @abstractmethod
    def parameter(self, operation: Operation, name: str, share: np.ndarray) -> None:
        """Take note of this party's share of a parameter that correlations multiply (`Operation.fixed`).

        Called once per parameter, in program order, at both parties alike, so the two may exchange something here.
        """

    @abstractmethod
    def source(self, kit: bytes | memoryview) -> QuerySource:
        """The correlations of one query, from what is stored of them."""
