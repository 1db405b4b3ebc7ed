"""What a query is made of at one server: its limits, its two possible ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.inventory import kit_bytes as dealt_kit_bytes
from autorep.mpc.store import HELD_BYTES
from autorep.mpc.transport import Entry
from autorep.mpc.two_party.names import PreparationName
from autorep.mpc.two_party.stored import kit_bytes as made_kit_bytes
from autorep.program.ir import Program

READY_BYTES = 2 << 30
AHEAD_BYTES = 16 << 30
SMALL_BYTES = 1 << 20  # a kit of at most so much is small
SMALL_READY = 4  # times as many small kits are kept ready
MOST_AT_ONCE = 32  # queries in one run
BATCH_BYTES = 1 << 26  # of one kit for several queries; larger ones cost more by their bytes than they save


@dataclass(frozen=True)
class SessionSettings:
    """How much one program may hold and how long it waits.

    Attributes:
        lanes: queries in flight at the same time.
        ready: kits prepared in memory ahead of queries, of large ones as many as take READY_BYTES, and at least one; of
            small ones of a dealer SMALL_READY times as many, or preparing would take longer than queries do.
        ahead: kits kept in the store, of large ones as many as take AHEAD_BYTES, and at least one.
        held: queries whose kits, the newest and first to be used, may be in memory; as many for each batch size.
        slack: of them, for whom there is room in memory: so many run before kits are fetched anew.
        queue: queries that may wait at a server; per_client: of one client.
        half_expiry: seconds after which a query whose other half did not arrive is dropped.
        timeout: seconds without progress after which a link or a waiting query fails.
        comparison: how kept ReLUs are compared; the same at both servers.
        preparation: who makes kits: a dealer, or the two servers.
        batch: queries, of any clients, that run together with one kit when as many wait; 1: never.
    """

    lanes: int = 2
    ready: int = 4
    ahead: int = 32
    held: int = 0
    slack: int = 0
    queue: int = 128
    per_client: int = 64
    half_expiry: float = 15.0
    timeout: float = 30.0
    comparison: ComparisonName = "dcf"
    preparation: PreparationName = "dealer"
    batch: int = 1

    def kit_bytes(self, program: Program, party: int, batch: int = 1) -> int:
        """Size of one party's kit for so many queries, as it comes into the store."""
        if self.preparation == "dealer":
            return dealt_kit_bytes(program, party, batch, self.comparison)
        return made_kit_bytes(program, batch)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes of the kits in use, largest first."""
        return (1,) if self.batch == 1 else (self.batch, 1)

    @property
    def supplier(self) -> str:
        """Where kits come from, for messages."""
        return "the dealer" if self.preparation == "dealer" else "the servers' own making"

    def for_kits_of(self, size: int) -> SessionSettings:
        """The same with as many kits as fit; `size` is that of one for one query."""
        ready, ahead = max(1, READY_BYTES // size), max(1, AHEAD_BYTES // size)
        dealt = self.preparation == "dealer"  # such kits cost little: a crash may lose some
        times = SMALL_READY if dealt and size <= SMALL_BYTES else 1
        ready, ahead = min(times * self.ready, ready), min(self.ahead, ahead)
        batch = self.batch if self.batch * size <= BATCH_BYTES else 1
        held = ahead // 2 * dealt
        return replace(self, ready=ready, ahead=ahead, batch=batch, held=held, slack=min(held, HELD_BYTES // size))


class QueryFailure(Exception):
    """Why a query was not answered: an HTTP status, a sentence, when to try again, and one word for the counters."""

    def __init__(self, status: int, message: str, retry_after: float | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after, self.reason = status, message, retry_after, reason


@dataclass(frozen=True)
class Answer:
    """This server's share of one answer, and what it cost."""

    share: np.ndarray = field(repr=False)
    seconds: float
    traffic: Entry
    offline_bytes: int
