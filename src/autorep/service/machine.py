"""What both servers decide alike about one program's queries and kits: events in, commands out, nothing else.

A query has two halves, one at each server, under one key. Party 0 (`Leader`) alone decides which query runs with which
kit on which lane, and which query is dropped; party 1 (`Follower`) reports what arrived and follows. So the servers can
never disagree about a kit, and every kit is used once.

A machine has no threads, sockets, files or clock. Every public method is an event; it gets the time where time matters
and returns the commands that whoever carries the messages must execute, in that order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from autorep.service.limits import Recent
from autorep.service.queries import Answer, QueryFailure, SessionSettings

REMEMBERED_KEYS = 100_000
_REMEMBERED_REFUSALS = 4096
_LONGEST_RETRY = 60.0


# ---------------------------------------------------------------------- commands


@dataclass(frozen=True)
class Tell:
    """Send a message to the other server over the present epoch's control link."""

    message: dict[str, Any]


@dataclass(frozen=True)
class Prepare:
    """Take a kit out of the store for good and do its offline part; then report `prepared`."""

    kit: str


@dataclass(frozen=True)
class Forget:
    """Throw away a kit that was prepared, or its preparation when it ends."""

    kit: str


@dataclass(frozen=True)
class Discard:
    """Delete unused kits from the store."""

    kits: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Run one or several queries with a prepared kit on a lane, in this order; then report `finished`."""

    lane: Hashable
    keys: tuple[str, ...]
    kit: str


@dataclass(frozen=True)
class CloseLane:
    """End a lane; the reason is told to the other server."""

    lane: Hashable
    reason: str


@dataclass(frozen=True)
class End:
    """A query is over: give the client its answer, or the reason why there is none."""

    key: str
    outcome: Answer | QueryFailure


@dataclass(frozen=True)
class CutLinks:
    """Close every link of an epoch."""

    epoch: str
    reason: str


@dataclass(frozen=True)
class Fetch:
    """The store wants further kits."""


Outcome = tuple[Answer, ...] | QueryFailure  # of queries that ran together: an answer each, or why there is none
Command = Tell | Prepare | Forget | Discard | Run | CloseLane | End | CutLinks | Fetch


# ---------------------------------------------------------------------- state


@dataclass
class Waiting:
    """One half that waits here; `matched` once the other one is known to wait as well."""

    client: str
    arrived: float
    matched: bool = False


class Machine(ABC):
    """State and events that both parties share."""

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.epoch: str | None = None
        self.problems: dict[str, str] = {"peer": "not connected yet"}
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, str] = {}  # query -> kit
        self.stored: set[str] = set()  # unused kits in this server's store
        self.pace = Pace()
        self._held: Counter[str] = Counter()  # halves waiting, by client
        self._seen: Recent[None] = Recent(REMEMBERED_KEYS)
        self._refusals: Recent[QueryFailure] = Recent(_REMEMBERED_REFUSALS)
        self._out: list[Command] = []

    # ------------------------------------------------------------------ events: queries

    def arrived(self, now: float, client: str, key: str) -> list[Command]:
        """A client hands in its half. A key used before is refused by raising; every other end is an `End`."""
        self.claim(key)
        refusal = self._refusals.get(key) or self._overfull(now, client)
        if refusal is not None:
            self._refuse(key, refusal)
        else:
            self.waiting[key] = Waiting(client, now)
            self._held[client] += 1
            self._half_arrived(now, key)
        return self._commands()

    def claim(self, key: str) -> None:
        """A key may be used once; raises QueryFailure when it was."""
        if key in self._seen:
            message = "this query id was used before; draw a new one, with new masks"
            raise self._refusals.get(key) or QueryFailure(409, message, None, "repeated")
        self._seen.add(key)

    def withdrawn(self, key: str) -> list[Command]:
        """The client gave up; a half that runs already runs on, one still on its way will be refused."""
        return self.refused(key, QueryFailure(424, "the client withdrew this query", reason="withdrawn"))

    def refused(self, key: str, failure: QueryFailure) -> list[Command]:
        """A half was turned away before it got here, for example by the rate limit: the other must not wait for it."""
        if key not in self.running:
            self._seen.add(key)
            self._refuse(key, failure)
        return self._commands()

    def closing(self) -> list[Command]:
        """This server is about to stop: nothing new, and nothing that waits, is run any more."""
        self.problems["server"] = "it is stopping"
        failure = QueryFailure(503, "this server is stopping; ask again in a moment", 2, "stopping")
        for key in list(self.waiting):
            self._refuse(key, failure)
        return self._commands()

    def tick(self, now: float) -> list[Command]:
        """A moment passed."""
        return self._commands()

    def retry_after(self, now: float) -> float:
        """Seconds until what waits now will have been served, as far as one can tell."""
        return min(_LONGEST_RETRY, max(1.0, self._wait(now)))

    def _wait(self, now: float) -> float:
        return (len(self.waiting) + 1) * self.pace.interval(now)

    def _overfull(self, now: float, client: str) -> QueryFailure | None:
        """Why nothing more can be taken from this client now.

        While there is room anybody may use it. When there is none, a client still gets its fair share of the queue, so
        that nobody, with halves that wait for their partners or with too many queries, shuts the others out.
        """
        if self.problems:
            text = "; ".join(f"{name}: {problem}" for name, problem in sorted(self.problems.items()))
            return QueryFailure(503, f"not ready ({text}); ask again in a moment", 1, "not ready")
        own, held, limit = self._held[client], len(self.waiting), self.settings.queue
        if own >= self.settings.per_client:
            message = f"{own} queries of this client wait already; wait for their answers"
            return QueryFailure(429, message, self.retry_after(now), "client queue")
        share = max(1, limit // (len(self._held) + (client not in self._held)))
        if held >= limit and (own >= share or held >= 4 * limit):
            message = f"{held} queries wait already; ask again in a moment"
            return QueryFailure(503, message, self.retry_after(now), "queue")
        return None

    def _end(self, key: str, outcome: Answer | QueryFailure) -> None:
        """A query leaves, whatever state it is in."""
        self._leave(key)
        self.running.pop(key, None)
        self._out.append(End(key, outcome))

    def _start(self, lane: Hashable, keys: tuple[str, ...], kit: str) -> None:
        """Waiting queries begin to run, together."""
        for key in keys:
            self._leave(key)
            self.running[key] = kit
        self._out.append(Run(lane, keys, kit))

    def _leave(self, key: str) -> None:
        """A half waits no longer."""
        if (half := self.waiting.pop(key, None)) is not None:
            self._held[half.client] -= 1
            if not self._held[half.client]:
                del self._held[half.client]

    def _end_all(self, keys: tuple[str, ...], outcome: Outcome) -> None:
        """Queries that ran together end: each with its own answer, or all with the failure."""
        if isinstance(outcome, QueryFailure):
            for key in keys:
                self._end(key, outcome)
            return
        for key, answer in zip(keys, outcome, strict=True):
            self._end(key, answer)

    # ------------------------------------------------------------------ events: epochs

    def opened(self, epoch: str, stored: Iterable[str]) -> list[Command]:
        """The two servers agreed on a new epoch; `stored` is what this server's store holds."""
        self._end_epoch("party 1 dialled anew")
        self.epoch = epoch
        self.stored = set(stored)
        return self._commands()

    def connected(self, epoch: str) -> list[Command]:
        """The control links of the epoch are up."""
        if epoch == self.epoch:
            self.problems.pop("peer", None)
            self._greet()
        return self._commands()

    def ended(self, epoch: str | None, reason: str) -> list[Command]:
        """An epoch is over (None: whichever there is)."""
        if epoch is None or epoch == self.epoch or self.epoch is None:
            self._end_epoch(reason)
        return self._commands()

    def _end_epoch(self, reason: str) -> None:
        """Everything that waits fails, what was prepared is thrown away; lanes report their queries themselves."""
        self.problems["peer"] = f"not connected: {reason}"
        failure = QueryFailure(503, f"the link between the servers broke ({reason}); ask again", 1, "link")
        for key in list(self.waiting):
            self._end(key, failure)
        self._throw_away()
        if self.epoch is not None:
            self._out.append(CutLinks(self.epoch, reason))
        self.epoch = None

    # ------------------------------------------------------------------ events: material

    def cleared(self, reason: str) -> list[Command]:
        """The dealer gave new blinding: the kits made for others are deleted already, the epoch is over."""
        self.stored.clear()
        self._end_epoch(reason)
        return self._commands()

    def put(self, kits: Iterable[str]) -> list[Command]:
        """New kits lie in this server's store."""
        self.stored.update(kits)
        self._stock_changed(list(kits))
        return self._commands()

    def _tell(self, message: dict[str, Any]) -> None:
        """A message for the other server; without an epoch there is nobody to tell."""
        if self.epoch is not None:
            self._out.append(Tell(message))

    def _commands(self) -> list[Command]:
        commands, self._out = self._out, []
        return commands

    # ------------------------------------------------------------------ what the parties do differently

    @property
    @abstractmethod
    def ready(self) -> int:
        """Kits a query could use at once."""

    @property
    @abstractmethod
    def supplied(self) -> bool:
        """Whether there is a kit for one more query, at once or soon."""

    @abstractmethod
    def prepared(self, epoch: str, kit: str, good: bool) -> list[Command]:
        """This server's preparation of a kit ended."""

    @abstractmethod
    def _half_arrived(self, now: float, key: str) -> None:
        """A new half waits here."""

    @abstractmethod
    def _refuse(self, key: str, failure: QueryFailure) -> None:
        """End a query that does not run, at both servers at once."""

    @abstractmethod
    def _greet(self) -> None:
        """The first words of an epoch."""

    @abstractmethod
    def _stock_changed(self, kits: list[str]) -> None:
        """Kits came into the store."""

    @abstractmethod
    def _throw_away(self) -> None:
        """Forget every kit and lane of the epoch that ends."""


class Pace:
    """How often a query ends while others wait, as a moving average; the base of every Retry-After."""

    _WEIGHT, _IDLE = 0.2, 10.0

    def __init__(self) -> None:
        self._interval = 0.1
        self._last: float | None = None

    def ended(self, now: float, busy: bool) -> None:
        """A query ended; `busy`: others were waiting, so that the next end tells how fast the server is."""
        if self._last is not None and now - self._last < self._IDLE:
            self._interval += self._WEIGHT * (now - self._last - self._interval)
        self._last = now if busy else None

    def interval(self, now: float) -> float:
        """Seconds between two ends; longer when none came for longer."""
        return self._interval if self._last is None else max(self._interval, min(now - self._last, self._IDLE))
