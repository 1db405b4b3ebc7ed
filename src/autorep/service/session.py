"""One program at one server: carries events to its machine and executes the machine's commands.

The machine (`Leader` or `Follower`) decides. It and everything else that changes here belong to whoever holds `turn`:
the event loop's thread, which speaks with clients, or the thread of a link or lane that has something to report. So a
query goes from thread to thread only where it must. What is not urgent, and what clients wait for, is posted to the
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.errors import AutorepError, MaterialError, ProtocolError, UsedError
from autorep.mpc.party import Party, PreparedQuery
from autorep.mpc.store import Store
from autorep.mpc.transport import Ledger, Transport
from autorep.program.ir import Program
from autorep.service.blinding import Blinding, read_blinding, write_blinding
from autorep.service.logs import crash, event, trouble
from autorep.service.machine import (
    CloseLane,
    Command,
    CutLinks,
    Discard,
    End,
    Fetch,
    Forget,
    Machine,
    Prepare,
    Run,
    Tell,
)
from autorep.service.metrics import Metrics
from autorep.service.queries import Answer, QueryFailure, SessionSettings
from autorep.service.stock import size_of
from autorep.service.workers import Worker, repeat

_TICK = 0.25
# Threads that prepare kits. Their priority is that of all others: one of less, put off by the system while it has the
# interpreter's lock, holds up the very queries that it should stand back for.
_PREPARERS = 2


@dataclass
class _Query:
    """One half in this server's hands."""

    share: np.ndarray = field(repr=False)
    future: asyncio.Future[Answer] = field(repr=False)
    arrived: float
    began: float | None = None


@dataclass(frozen=True)
class Kit:
    """A kit whose offline part is done; `size` in bytes, as it lay in the store."""

    query: PreparedQuery = field(repr=False)
    size: int


@dataclass(frozen=True)
class Job:
    """All that a lane needs to run one query, or several together: image i of the batch is query i."""

    keys: tuple[str, ...]
    kit_id: str
    party: Party = field(repr=False)
    kit: Kit = field(repr=False)
    shares: list[np.ndarray] = field(repr=False)

    def run(self, transport: Transport) -> tuple[Answer, ...]:
        """This server's shares of the answers; every failure becomes a QueryFailure."""
        event("running", queries=self.keys, kit=self.kit_id)
        transport.ledger = Ledger()
        started = time.perf_counter()
        try:
            share = self.party.run(transport, self.kit.query, self._images())
        except AutorepError as error:
            trouble("query failed", error, queries=self.keys)
            if not isinstance(error, ProtocolError):
                transport.abort("this query could not be run")
        except Exception as error:  # the lane goes on, and the client gets an answer that says so
            crash("query failed", error, queries=self.keys)
            transport.abort("this query could not be run")
        else:
            seconds, count = time.perf_counter() - started, len(self.keys)
            traffic = transport.ledger.total("online").divided(count)
            size = self.kit.size // count
            return tuple(Answer(share[i : i + 1], seconds, traffic, size) for i in range(count))
        raise QueryFailure(502, "the servers failed during the query; ask again with new masks", 1, "failed")

    def _images(self) -> np.ndarray:
        """The batch of shares; places that no query takes hold an image of zeros."""
        if len(self.shares) == self.kit.query.batch == 1:
            return self.shares[0]
        images = np.zeros((self.kit.query.batch, *self.shares[0].shape[1:]), np.uint64)
        np.concatenate(self.shares, out=images[: len(self.shares)])
        return images


@dataclass(eq=False)
class Lane:
    """One connection for queries; a text among the jobs is the reason why it ends."""

    epoch: str
    jobs: queue.SimpleQueue[Job | str] = field(default_factory=queue.SimpleQueue)


class Session(ABC):
    """What carrying is alike at both servers.

    Args:
        machine: decides.
        program: its public part; program_hash: in hex.
        load_shares: reads this party's shares of the parameters.
        store_folder: where kits and the blinding seed of this program live.
        made_together: how kits are made where no dealer gives a blinding.
    """

    index: int
    machine: Machine

    def __init__(
        self,
        machine: Machine,
        program: Program,
        program_hash: str,
        load_shares: Callable[[], Mapping[str, np.ndarray]],
        store_folder: Path,
        settings: SessionSettings,
        metrics: Metrics,
        made_together: Blinding | None = None,
    ) -> None:
        self.machine, self.program, self.hash, self.settings = machine, program, program_hash, settings
        self.metrics = metrics.of(program_hash)
        self.store = Store(store_folder, bytes.fromhex(program_hash), settings.held)
        self.blinding = read_blinding(store_folder)
        if made_together is not None:
            self._keep_blinding(made_together)
        self._making_trouble: str | None = "this server has them made ahead (--ahead 0)"
        self._kit_bytes = {size: settings.kit_bytes(program, self.index, size) for size in settings.sizes}
        self.party: Party | None = None
        self.turn = threading.RLock()
        self.stopping = threading.Event()
        self.wanted = threading.Event()  # set when the store wants another kit
        self.workers: list[Worker] = [
            Worker("autorep-prepare", self._prepare_forever, self.stopping, self.metrics.crashed, program=program_hash)
            for _ in range(_PREPARERS)
        ]
        self._load_shares = load_shares
        self._queries: dict[str, _Query] = {}
        self._prepared: dict[str, Kit] = {}
        self._to_prepare: queue.SimpleQueue[tuple[str, str, Party]] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: int | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._discard_other_sizes()
        machine.stored = self._stored_ids()
        self.metrics.stored.set_function(lambda: len(machine.stored))
        self.metrics.ready.set_function(self._ready)
        self.metrics.waiting.set_function(lambda: len(machine.waiting))
        self.metrics.running.set_function(lambda: len(machine.running))
        if self.store.turned_away:
            self.metrics.kits_refused("used", self.store.turned_away)
            event("kits deleted that the record does not know as unused", kits=self.store.turned_away)

    # ------------------------------------------------------------------ life

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to connect and to answer; called once, on the loop."""
        self._loop, self._loop_thread = loop, threading.get_ident()
        self.wanted.set()
        self._ticker = loop.create_task(repeat("ticker", self._tick, _TICK, self.metrics.crashed))
        for worker in self.workers:
            worker.start()

    def close_door(self) -> None:
        """Refuse new queries and those that wait; what runs may finish."""
        self.happen(self.machine.closing)

    def stop(self) -> None:
        """Abort what runs and end the threads; on the loop."""
        self.stopping.set()
        self.wanted.set()
        self.close_door()
        self.happen(self.machine.ended, None, f"party {self.index} is stopping")
        if self._ticker is not None:
            self._ticker.cancel()
        self.store.close()

    def _tick(self) -> None:
        self.happen(self.machine.tick, time.monotonic())

    def ills(self) -> dict[str, str]:
        """Workers that do not do their work, and why."""
        return {worker.name: problem for worker in self.workers if (problem := worker.problem) is not None}

    # ------------------------------------------------------------------ events and commands

    def happen(self, event_of: Callable[..., list[Command]], *facts: Any) -> None:
        """Tell the machine of an event and do what it commands; from any thread."""
        with self.turn:
            try:
                self._perform(event_of(*facts))
            except QueryFailure:
                raise
            except Exception as error:  # its state cannot be trusted any more: a new epoch starts afresh
                crash("event failed", error, program=self.hash, event_of=event_of.__name__)
                self.metrics.crashed()
                self._perform(self.machine.ended(None, "an internal error"))

    def post(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function on the loop's thread, soon; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing matters any more
                self._loop.call_soon_threadsafe(function, *arguments)

    def _perform(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Tell(message):
                    self.tell(message)
                case Prepare(kit):
                    assert self.party is not None
                    assert self.machine.epoch is not None
                    self.store.promise(bytes.fromhex(kit))
                    self._to_prepare.put((self.machine.epoch, kit, self.party))
                case Forget(kit):
                    self._prepared.pop(kit, None)
                case Discard(kits):
                    self._discard(kits)
                case Run(lane, keys, kit):
                    self._run(lane, keys, kit)  # type: ignore[arg-type]  # the machine does not look into lanes
                case CloseLane(lane, reason):
                    lane.jobs.put(reason)  # type: ignore[attr-defined]  # as above
                case End(key, outcome):
                    self._end(key, outcome)
                case CutLinks(epoch, reason):
                    event("peer lost", program=self.hash, reason=reason)
                    self.cut_links(epoch)
                case Fetch():
                    self.wanted.set()

    def _run(self, lane: Lane, keys: tuple[str, ...], kit_id: str) -> None:
        queries, now = [self._queries[key] for key in keys], time.monotonic()
        for query in queries:
            query.began = now
            self.metrics.queued(now - query.arrived)
        self.metrics.started()
        assert self.party is not None
        shares = [query.share for query in queries]
        lane.jobs.put(Job(keys, kit_id, self.party, self._prepared.pop(kit_id), shares))

    def _discard(self, kits: tuple[str, ...]) -> None:
        for kit in kits:
            try:
                self.store.discard(bytes.fromhex(kit))
            except (OSError, ValueError) as error:
                trouble("kit not deleted", error, program=self.hash, kit=kit)
        event("kits without a partner deleted", program=self.hash, count=len(kits))

    def _end(self, key: str, outcome: Answer | QueryFailure) -> None:
        """A query's end, which its client hears of on the loop."""
        query = self._queries.pop(key, None)
        if query is None:
            return
        if threading.get_ident() == self._loop_thread:
            self._resolve(key, query, outcome)
        else:
            self.post(self._resolve, key, query, outcome)

    def _resolve(self, key: str, query: _Query, outcome: Answer | QueryFailure) -> None:
        """The client's turn comes first, then the books."""
        seconds = time.monotonic() - query.arrived
        if not query.future.done():
            if isinstance(outcome, Answer):
                query.future.set_result(outcome)
            else:
                query.future.set_exception(outcome)
        asyncio.get_running_loop().call_soon(self._book, key, outcome, seconds)

    def _book(self, key: str, outcome: Answer | QueryFailure, seconds: float) -> None:
        """Count and log a query's end, so many seconds after it arrived."""
        if isinstance(outcome, Answer):
            self.metrics.answered(outcome, seconds)
            event("answered", query=key, seconds=round(outcome.seconds, 6), sent=outcome.traffic.sent)
        else:
            self.metrics.failed(outcome)
            event("failed", query=key, status=outcome.status, reason=outcome.message)

    # ------------------------------------------------------------------ queries, from the API

    def submit(
        self, client: str, query_id: str, shares: list[np.ndarray], payer: str | None = None
    ) -> list[asyncio.Future[Answer]]:
        """Hand in one half of a query, of one image or several; on the loop.

        Each image is a query of its own for the servers, with a kit of its own, and may fail alone: there is a future
        for each, with this server's share of the answer or a QueryFailure. Who cancels one withdraws the query.
        `payer` is whose place in the queue they take: the client, unless clients have no names here.
        """
        key = f"{client}:{query_id}"
        with self.turn:
            if len(shares) > 1:
                self.machine.claim(key)
            keys = _keys(key, len(shares))
            return [self._take_in(payer or client, each, share) for each, share in zip(keys, shares)]

    def _take_in(self, payer: str, key: str, share: np.ndarray) -> asyncio.Future[Answer]:
        now = time.monotonic()
        commands = self.machine.arrived(now, payer, key)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queries[key] = _Query(share, future, now)
        future.add_done_callback(partial(self._settled, key))
        self._perform(commands)
        return future

    def _settled(self, key: str, future: asyncio.Future[Answer]) -> None:
        if future.cancelled():
            self.happen(self.machine.withdrawn, key)
        else:
            future.exception()  # also where nobody asks for it any more, as when its client left

    def withdraw(self, client: str, query_id: str) -> None:
        """Give up one half that does not run yet, and refuse it should it still be on its way."""
        key = f"{client}:{query_id}"
        with self.turn:
            for each in [key, *(each for each in self._queries if each.startswith(f"{key}."))]:
                self.happen(self.machine.withdrawn, each)

    def turned_away(self, client: str, query_id: str, images: int, failure: QueryFailure) -> None:
        """One half was refused before it got here; the other one need not wait for it."""
        for key in _keys(f"{client}:{query_id}", images):
            self.happen(self.machine.refused, key, failure)

    # ------------------------------------------------------------------ material

    def use_blinding(self, blinding: Blinding) -> None:
        """Adopt the dealer's blinding; from a link's thread. Kits made for another one are worthless and deleted."""
        if self._keep_blinding(blinding):
            with self.turn:
                self.blinding, self.party = blinding, None
                self.happen(self.machine.cleared, "the dealer gave new blinding")
            event("blinding adopted", program=self.hash, blinding=blinding.id)

    def _keep_blinding(self, blinding: Blinding) -> bool:
        """Whether it is another one than the store's; then it is the store's now."""
        if self.blinding is not None and blinding.id == self.blinding.id:
            return False
        for kit_id in self.store.ids():
            self.store.discard(kit_id)
        write_blinding(self.store.folder, blinding)
        self.blinding = blinding
        return True

    def making(self, trouble: str | None) -> None:
        """How making kits with the other server goes: None while the two are connected for it; from any thread."""
        self._making_trouble = trouble
        self.metrics.making.set(trouble is None)
        self.post(self.supply_flows, trouble is None)

    def shortage(self) -> str:
        """Why there may be no kit, for those who want one."""
        if self.settings.preparation == "dealer":
            return "no kit is left; is the dealer running?"
        if self._making_trouble is None:
            return "no kit is left; the two servers are making more"
        return f"no kit is left, and the two servers make none: {self._making_trouble}"

    def put(self, kit_id: str, pieces: Iterator[memoryview]) -> bool:
        """Store a kit; from a link's thread. False when the disk would not take it.

        The machine knows of it when this returns: party 1 gets its half after party 0 has said that it has its own, and
        reports it; were that report first, the kit would seem to be without a partner.
        """
        try:
            with self.store.incoming(bytes.fromhex(kit_id), self.kit_bytes(kit_id)) as sink:
                for piece in pieces:
                    sink.write(piece)
        except (MaterialError, OSError) as error:
            self._kit_refused("kit not stored", kit_id, error)
            for _ in pieces:
                pass  # the rest of it is on its way
            return False
        self.happen(self.machine.put, [kit_id])
        return True

    def kit_bytes(self, kit_id: str) -> int:
        """How large the kit of this name must be; from a link's thread."""
        try:
            return self._kit_bytes[size_of(kit_id)]
        except (ValueError, IndexError, KeyError):
            raise ProtocolError(
                f"kit {kit_id[:64]!r} is offered; this server takes kits for {self.settings.sizes} queries at once"
            ) from None

    def _discard_other_sizes(self) -> None:
        """Kits for so many queries at once as are not run together any more."""
        others = [kit for kit in self._stored_ids() if size_of(kit) not in self.settings.sizes]
        if others:
            self._discard(tuple(others))

    def _kit_refused(self, what: str, kit_id: str, error: Exception) -> None:
        self.metrics.kits_refused("used" if isinstance(error, UsedError) else "unusable")
        trouble(what, error, program=self.hash, kit=kit_id)

    def hello(self) -> dict[str, Any]:
        """What both servers must agree on."""
        blinding = None if self.blinding is None else self.blinding.id
        names = ("comparison", "preparation", "batch")
        facts = {name: getattr(self.settings, name) for name in names}
        return {"party": self.index, "program": self.hash, "blinding": blinding, **facts}

    def open_weights(self, link: Transport, blinding: Blinding) -> Party:
        """A party with freshly read shares, its weights opened together with the other party."""
        party = Party(self.program, self._load_shares(), self.index, self.settings.comparison)
        party.setup(blinding.model(self.program, self.index, link))
        _native.keep_freed_memory()  # only now: what setting up took is given back first
        gc.collect()
        gc.freeze()  # what stays: else a collection looks through all of it in the midst of some query, for 0.1 s
        event("weights opened", program=self.hash, bytes=link.ledger.total("offline").sent)
        return party

    def begin_epoch(self, epoch: str, blinding: Blinding, party: Party | None) -> None:
        """Both servers are set up; from a link's thread. `party` is None when the one there is remains good.

        Looking through the store takes its time, in which nobody waits for `turn`, and further kits may come.
        """
        with self.turn:
            known = set(self.machine.stored)
        stored = self._stored_ids()
        with self.turn:
            if self.blinding is not blinding:
                raise MaterialError("the dealer gave new blinding meanwhile; party 1 must dial again")
            self.party = party or self.party
            self.happen(self.machine.opened, epoch, stored | (self.machine.stored - known))

    def _stored_ids(self) -> set[str]:
        return {kit_id.hex() for kit_id in self.store.ids()}

    def _prepare_forever(self) -> None:
        """Take kits out of the store for good and do their offline part, one after another."""
        while not self.stopping.is_set():
            try:
                epoch, kit_id, party = self._to_prepare.get(timeout=1.0)
            except queue.Empty:
                continue
            kit: Kit | None = None
            try:
                data = self.store.take(bytes.fromhex(kit_id))
                kit = Kit(party.prepare(party.source(data)), len(data))
            except (AutorepError, OSError) as error:
                self._kit_refused("kit not prepared", kit_id, error)
            finally:
                self.post(self._preparation_ended, epoch, kit_id, kit)

    def _preparation_ended(self, epoch: str, kit_id: str, kit: Kit | None) -> None:
        with self.turn:
            if kit is not None:
                self._prepared[kit_id] = kit
            self.happen(self.machine.prepared, epoch, kit_id, kit is not None)

    def _ready(self) -> int:
        with self.turn:
            return self.machine.ready

    # ------------------------------------------------------------------ what the parties do differently

    @abstractmethod
    def tell(self, message: dict[str, Any]) -> None:
        """Send a message over the present epoch's control link; holding `turn`."""

    @abstractmethod
    def cut_links(self, epoch: str) -> None:
        """Cut all links of an epoch; holding `turn`."""

    @abstractmethod
    def supply_idle(self) -> None:
        """Nothing is on its way from the dealer; on the loop."""

    @abstractmethod
    def supply_flows(self, flows: bool) -> None:
        """Whether whoever makes kits is at work; on the loop."""


def _keys(key: str, images: int) -> list[str]:
    """What a query's images are known by, one key each, at both servers."""
    return [key] if images == 1 else [f"{key}.{number}" for number in range(images)]
