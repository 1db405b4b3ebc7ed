"""One program at one server: the queries that wait, the material they will use, and how each ends.

A query has two halves, one at each server, under one id. Party 0 leads: it alone decides which query runs with which
kit on which lane, and which query is dropped; party 1 reports what arrived and follows. So the servers can never
disagree about a kit, and every kit is used once.

The state here belongs to the event loop's thread. Links and computations run in threads of their own and come back
through `call`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.errors import AutorepError, MaterialError
from autorep.mpc.blinding import BlindedModel
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.inventory import kit_bytes
from autorep.mpc.party import Party, PreparedQuery
from autorep.mpc.store import Store
from autorep.mpc.transport import Entry, Transport
from autorep.program.ir import Program
from autorep.service.limits import Recent
from autorep.service.logs import event, trouble
from autorep.service.metrics import Metrics

_REMEMBERED_IDS = 100_000


@dataclass(frozen=True)
class SessionSettings:
    """How much one program may hold and how long it waits.

    Attributes:
        lanes: queries in flight at the same time.
        ready: kits prepared in memory ahead of queries.
        ahead: kits kept on disk.
        queue: queries that may wait at a server; per_client: of one client.
        half_expiry: seconds after which a query whose other half did not arrive is dropped.
        timeout: seconds without progress after which a link or a waiting query fails.
        comparison: how kept ReLUs are compared; the same at both servers.
    """

    lanes: int = 2
    ready: int = 4
    ahead: int = 32
    queue: int = 64
    per_client: int = 32
    half_expiry: float = 15.0
    timeout: float = 30.0
    comparison: ComparisonName = "dcf"


class QueryFailure(Exception):
    """Why a query was not answered: an HTTP status, a sentence, and when to try again."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


@dataclass(frozen=True)
class Answer:
    """This server's share of one answer, and what it cost."""

    share: np.ndarray = field(repr=False)
    seconds: float
    traffic: Entry
    offline_bytes: int


@dataclass
class Query:
    """One half of a query, waiting or running."""

    key: str
    client: str
    share: np.ndarray = field(repr=False)
    future: asyncio.Future[Answer] = field(repr=False)
    arrived: float
    matched: bool = False


@dataclass(frozen=True)
class Blinding:
    """This party's seed of the blinding under which the weights are opened, and the id both parties must agree on."""

    id: str
    seed: bytes = field(repr=False)


class Session(ABC):
    """What both servers do alike; `Leader` and `Follower` add their side of the conversation.

    Args:
        program: its public part; program_hash: in hex; index: this party.
        load_shares: reads this party's shares of the parameters.
        store_folder: where kits and the blinding seed of this program live.
    """

    def __init__(
        self,
        program: Program,
        program_hash: str,
        index: int,
        load_shares: Callable[[], Mapping[str, np.ndarray]],
        store_folder: Path,
        settings: SessionSettings,
        metrics: Metrics,
    ) -> None:
        self.program, self.hash, self.index, self.settings = program, program_hash, index, settings
        self.metrics = metrics.of(program_hash)
        self.store = Store(store_folder, bytes.fromhex(program_hash))
        self.kit_bytes = kit_bytes(program, index, 1, settings.comparison)
        self.blinding = read_blinding(store_folder)
        self.party: Party | None = None
        self.waiting: dict[str, Query] = {}
        self.running: dict[str, Query] = {}
        self.problems: dict[str, str] = {"peer": "not connected yet"}
        self.stopping = threading.Event()
        self.wanted = threading.Event()  # set when the store wants another kit
        self._load_shares = load_shares
        self._seen = Recent(_REMEMBERED_IDS)
        self._preparer = ThreadPoolExecutor(2, "autorep-prepare", initializer=_step_back)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.metrics.stored.set(len(self.store))

    # ------------------------------------------------------------------ life

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to connect and to answer; called once, on the loop."""
        self._loop = loop
        self.wanted.set()

    def close_door(self) -> None:
        """Refuse new queries and those that wait; what runs may finish."""
        self._problem("server", "it is stopping")
        self._fail_all(QueryFailure(503, "this server is stopping; ask again in a moment", 2))

    def stop(self) -> None:
        """Abort what runs and end the threads."""
        self.stopping.set()
        self.wanted.set()
        self.close_door()
        self._preparer.shutdown(wait=False, cancel_futures=True)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function on the loop's thread, from any thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def hello(self) -> dict[str, Any]:
        """What both servers must agree on."""
        blinding = None if self.blinding is None else self.blinding.id
        return {
            "party": self.index,
            "program": self.hash,
            "blinding": blinding,
            "comparison": self.settings.comparison,
        }

    # ------------------------------------------------------------------ queries

    async def submit(self, client: str, query_id: str, share: np.ndarray) -> Answer:
        """Hand in one half of a query and wait for this server's share of the answer."""
        key = f"{client}:{query_id}"
        if key in self._seen:
            raise QueryFailure(409, f"query id {query_id} was used before; draw a new one, with new masks")
        self._admit(client)
        self._seen.add(key)
        loop = asyncio.get_running_loop()
        query = Query(key, client, share, loop.create_future(), loop.time())
        self.waiting[key] = query
        self.metrics.waiting.set(len(self.waiting))
        self._arrived(query)
        try:
            return await query.future
        finally:
            if query.future.cancelled():
                self._abandoned(query)

    def withdraw(self, client: str, query_id: str) -> None:
        """Give up one half that does not run yet, and refuse it should it still be on its way."""
        key = f"{client}:{query_id}"
        self._seen.add(key)
        if (query := self.waiting.get(key)) is not None:
            self._abandoned(query)

    def _admit(self, client: str) -> None:
        """Refuse at the door what could not be answered soon."""
        if self.problems:
            text = "; ".join(f"{name}: {problem}" for name, problem in sorted(self.problems.items()))
            raise QueryFailure(503, f"not ready ({text}); ask again in a moment", 1)
        if len(self.waiting) >= self.settings.queue:
            raise QueryFailure(503, f"{len(self.waiting)} queries wait already; ask again in a moment", 1)
        own = sum(query.client == client for query in self.waiting.values())
        if own >= self.settings.per_client:
            raise QueryFailure(429, f"{own} queries of this client wait already; wait for their answers", 1)

    def _resolve(self, query: Query, outcome: Answer | QueryFailure) -> None:
        """End a query, whatever state it is in."""
        self.waiting.pop(query.key, None)
        self.running.pop(query.key, None)
        self.metrics.waiting.set(len(self.waiting))
        self.metrics.running.set(len(self.running))
        if isinstance(outcome, Answer):
            self.metrics.answered(outcome)
            event("answered", query=query.key, seconds=round(outcome.seconds, 6), sent=outcome.traffic.sent)
        else:
            self.metrics.failed(outcome.status)
            event("failed", query=query.key, status=outcome.status, reason=outcome.message)
        if query.future.done():
            return
        if isinstance(outcome, Answer):
            query.future.set_result(outcome)
        else:
            query.future.set_exception(outcome)

    def _fail_all(self, failure: QueryFailure) -> None:
        for query in [*self.waiting.values()]:
            self._resolve(query, failure)

    def _problem(self, name: str, text: str | None) -> None:
        """Note or clear a reason why this server cannot answer."""
        if text is None:
            self.problems.pop(name, None)
        else:
            self.problems[name] = text

    @abstractmethod
    def _arrived(self, query: Query) -> None:
        """A new half waits here."""

    @abstractmethod
    def _abandoned(self, query: Query) -> None:
        """The client of a half went away."""

    # ------------------------------------------------------------------ material

    def use_blinding(self, blinding: Blinding) -> None:
        """Adopt the dealer's blinding; from a link's thread. Kits made for another one are worthless and deleted."""
        if self.blinding is not None and blinding.id == self.blinding.id:
            return
        for kit_id in self.store.ids():
            self.store.discard(kit_id)
        write_blinding(self.store.folder, blinding)
        self.blinding, self.party = blinding, None
        self.metrics.stored.set(0)
        event("blinding adopted", program=self.hash, blinding=blinding.id)
        self.drop_peer("the dealer gave new blinding")

    def put(self, kit_id: str, pieces: Iterator[memoryview]) -> bool:
        """Store a kit; from a link's thread. False when the disk would not take it."""
        try:
            with self.store.incoming(bytes.fromhex(kit_id)) as sink:
                for piece in pieces:
                    sink.write(piece)
        except MaterialError as error:
            for _ in pieces:
                pass  # the rest of it is on its way
            trouble("kit not stored", error, program=self.hash, kit=kit_id)
            return False
        self.metrics.stored.set(len(self.store))
        self.call(self._stored, [kit_id])
        return True

    def open_weights(self, link: Transport, blinding: Blinding) -> Party:
        """A party with freshly read shares, its weights opened together with the other party."""
        party = Party(self.program, self._load_shares(), self.index, self.settings.comparison)
        party.setup(BlindedModel(self.program, self.index, link, blinding.seed, bytes.fromhex(blinding.id)))
        _native.keep_freed_memory()  # only now: what setting up took is given back first
        return party

    def _prepare(self, party: Party, kit_id: str) -> tuple[PreparedQuery, int]:
        """Take a kit out of the store for good and do its offline part; in the preparing thread."""
        data = self.store.take(bytes.fromhex(kit_id))
        self.metrics.stored.set(len(self.store))
        return party.prepare(party.source(data)), len(data)

    def _begin_prepare(self, kit_id: str, done: Callable[[str, Any], None]) -> None:
        """Prepare a kit in its thread; `done` gets (kit id, result or AutorepError) on the loop."""
        party = self.party

        def work() -> None:
            try:
                if party is None:
                    raise MaterialError("the weights are not opened yet")
                result: Any = self._prepare(party, kit_id)
            except AutorepError as error:
                trouble("kit not prepared", error, program=self.hash, kit=kit_id)
                result = error
            self.call(done, kit_id, result)

        if not self.stopping.is_set():
            self._preparer.submit(work)

    @abstractmethod
    def kits_ready(self) -> int:
        """Kits a query could use at once."""

    @abstractmethod
    def _stored(self, kit_ids: list[str]) -> None:
        """New kits lie in this server's store."""

    @abstractmethod
    def supply_idle(self) -> None:
        """Nothing is on its way from the dealer: a good moment to compare the two stores."""

    @abstractmethod
    def drop_peer(self, reason: str) -> None:
        """Cut all links to the other server; from any thread."""


def _step_back() -> None:
    """Preparation yields to queries in flight: a lower priority for this thread, where the system has such."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def read_blinding(folder: Path) -> Blinding | None:
    try:
        values = json.loads((folder / "blinding.json").read_text(encoding="utf-8"))
        return Blinding(values["blinding_id"], bytes.fromhex(values["seed"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError):
        raise MaterialError(f"{folder}/blinding.json is damaged; delete this store and prepare it anew") from None


def write_blinding(folder: Path, blinding: Blinding) -> None:
    """Durably, readable by this user only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = folder / "blinding.json.new"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({"blinding_id": blinding.id, "seed": blinding.seed.hex()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / "blinding.json")
