"""Party 0's side of a session: matches halves, chooses kits and lanes, tells party 1.

Links, all opened by party 1 under one random `epoch`, each served by one thread here:

    setup      opens the weights under the dealer's blinding, when either side has not done so
    commands   party 0 → 1: prepare a kit, drop a query
    notes      party 1 → 0: kits stored, prepared or missing; halves arrived or gone
    lane i     one query after another: a message that names query and kit, then the protocol itself

When commands or notes break, the epoch ends: everything that waits fails with 503, what was prepared is thrown away,
and party 1 dials again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from autorep.errors import AutorepError, MaterialError, ProtocolError
from autorep.mpc.party import PreparedQuery
from autorep.mpc.transport import Ledger, Transport, handshake
from autorep.service.limits import FairQueue
from autorep.service.logs import event, trouble
from autorep.service.messages import receive_message, send_message
from autorep.service.session import Answer, Query, QueryFailure, Session

_TICK = 0.25


@dataclass
class _Half:
    """Progress of one kit towards being ready at both servers."""

    own: tuple[PreparedQuery, int] | None = None
    peer: bool = False


@dataclass(frozen=True)
class _Job:
    query: Query
    kit_id: str
    prepared: PreparedQuery = field(repr=False)
    offline_bytes: int


@dataclass(eq=False)
class _Lane:
    """One connection for queries; None among the jobs ends it."""

    epoch: str
    jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)


class Leader(Session):
    """One program at party 0."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._announced: dict[str, float] = {}  # halves that wait at party 1, by arrival
        self._line: FairQueue[Query] = FairQueue()
        self._lanes: set[_Lane] = set()
        self._idle: deque[_Lane] = deque()
        self._peer_kits: set[str] = set()
        self._progress: dict[str, _Half] = {}
        self._ready: deque[tuple[str, PreparedQuery, int]] = deque()
        self._epoch: str | None = None
        self._links: set[Transport] = set()
        self._links_lock = threading.Lock()
        self._commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._ticker: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        super().start(loop)
        self._ticker = loop.create_task(self._tick())

    def stop(self) -> None:
        super().stop()
        if self._ticker is not None:
            self._ticker.cancel()
        self.drop_peer("party 0 is stopping")

    def drop_peer(self, reason: str) -> None:
        with self._links_lock:
            links, self._links, self._epoch = self._links, set(), None
            self._commands.put(None)
        for link in links:
            link.interrupt()
        self.call(self._end_epoch, reason)

    # ------------------------------------------------------------------ links (each in its own thread)

    def serve_link(self, transport: Transport, greeting: dict[str, Any]) -> None:
        """Serve one authenticated connection of party 1 until it ends."""
        if greeting.get("kind") == "probe":
            send_message(transport, {"state": "; ".join(self.problems.values()) or "connected to party 1"})
            return
        if self.blinding is None:
            transport.abort("party 0 has no blinding yet; it waits for its dealer")
            return
        if self.stopping.is_set():
            transport.abort("party 0 is stopping")
            return
        handshake(transport, self.hello())
        kind, epoch = greeting.get("kind"), str(greeting.get("epoch"))
        if kind == "setup":
            self._setup(transport, epoch)
            return
        with self._links_lock:
            if epoch != self._epoch:
                transport.abort("this connection belongs to an epoch that ended; dial again")
                return
            self._links.add(transport)
        try:
            if kind == "commands":
                self._send_commands(transport)
            elif kind == "notes":
                self._read_notes(transport)
            elif kind == "lane":
                self._serve_lane(transport, epoch)
        finally:
            with self._links_lock:
                self._links.discard(transport)
            if kind in ("commands", "notes") and epoch == self._epoch:
                self.drop_peer(f"the {kind} link to party 1 broke")

    def _setup(self, transport: Transport, epoch: str) -> None:
        self.drop_peer("party 1 dialled anew")
        blinding, needed = self.blinding, self.party is None
        assert blinding is not None
        send_message(transport, {"needs_setup": needed})
        if receive_message(transport).get("needs_setup") or needed:
            party = self.open_weights(transport, blinding)
            if self.blinding is not blinding:
                raise MaterialError("the dealer gave new blinding meanwhile; party 1 must dial again")
            self.party = party
            event("weights opened", program=self.hash, bytes=transport.ledger.total("offline").sent)
        with self._links_lock:
            self._epoch = epoch
            self._commands = queue.SimpleQueue()
        send_message(transport, {"done": True})

    def _send_commands(self, transport: Transport) -> None:
        commands = self._commands
        self.call(self._peer_up)
        while not self.stopping.is_set() and not transport.failed:
            try:
                command = commands.get(timeout=self.settings.timeout / 4)
            except queue.Empty:
                command = {"alive": True}
            if command is None:
                break
            send_message(transport, command)

    def _read_notes(self, transport: Transport) -> None:
        while not self.stopping.is_set():
            self.call(self._note, receive_message(transport))

    def _serve_lane(self, transport: Transport, epoch: str) -> None:
        lane = _Lane(epoch)
        self.call(self._lane_up, lane)
        job: _Job | None = None
        try:
            while not self.stopping.is_set():
                try:
                    job = lane.jobs.get(timeout=self.settings.timeout / 4)
                except queue.Empty:
                    send_message(transport, {"alive": True})
                    continue
                if job is None:
                    break
                answer = self._run(transport, job)
                self.call(self._finished, lane, job, answer)
                job = None
        except AutorepError as error:
            if job is not None:
                trouble("query failed", error, query=job.query.key)
                failure = QueryFailure(502, "the other server failed during the query; ask again with new masks")
                self.call(self._resolve, job.query, failure)
            if not isinstance(error, ProtocolError):
                transport.abort("party 0 could not run the query")
            raise
        finally:
            self.call(self._lane_down, lane)

    def _run(self, transport: Transport, job: _Job) -> Answer:
        assert self.party is not None
        event("running", query=job.query.key, kit=job.kit_id)
        send_message(transport, {"query": job.query.key, "kit": job.kit_id})
        transport.ledger = Ledger()
        started = time.perf_counter()
        share = self.party.run(transport, job.prepared, job.query.share)
        seconds = time.perf_counter() - started
        return Answer(share, seconds, transport.ledger.total("online"), job.offline_bytes)

    # ------------------------------------------------------------------ on the loop

    def _peer_up(self) -> None:
        self._problem("peer", None)
        event("peer connected", program=self.hash)

    def _end_epoch(self, reason: str) -> None:
        if "peer" not in self.problems:
            event("peer lost", program=self.hash, reason=reason)
        self._problem("peer", f"not connected: {reason}")
        self._announced.clear()
        self._peer_kits.clear()
        self._progress.clear()
        self._ready.clear()
        self._idle.clear()
        for lane in self._lanes:
            lane.jobs.put(None)
        self._line = FairQueue()
        self._fail_all(QueryFailure(503, f"the link between the servers broke ({reason}); ask again", 1))
        self._count()

    def _lane_up(self, lane: _Lane) -> None:
        self._lanes.add(lane)
        self.metrics.lanes.inc()
        self._release(lane)

    def _lane_down(self, lane: _Lane) -> None:
        self.metrics.lanes.dec()
        self._lanes.discard(lane)
        if lane in self._idle:
            self._idle.remove(lane)
        while not lane.jobs.empty():  # handed over while the lane broke
            if (job := lane.jobs.get()) is not None:
                self._resolve(job.query, QueryFailure(503, "the link between the servers broke; ask again", 1))

    def _note(self, note: dict[str, Any]) -> None:
        """One report of party 1."""
        match note:
            case {"all_stored": list(ids)}:
                self._compare_stores({str(i) for i in ids})
            case {"stored": list(ids)}:
                self._peer_kits.update(map(str, ids))
                self._refill()
            case {"prepared": str(kit_id)}:
                self._step_ready(kit_id, peer=True)
            case {"missing": str(kit_id)}:
                self._progress.pop(kit_id, None)
                self._refill()
            case {"arrived": str(key)}:
                self._announced[key] = self._now()
                if (query := self.waiting.get(key)) is not None:
                    self._match(query)
            case {"gone": str(key)}:
                self._announced.pop(key, None)
                self._drop(key, QueryFailure(424, "the client withdrew the other half of this query"))

    def _compare_stores(self, theirs: set[str]) -> None:
        """Both must hold a kit; what only one holds is left over from a crash and is deleted."""
        ours = {kit_id.hex() for kit_id in self.store.ids()}
        theirs -= self._progress.keys()  # being taken out on both sides at this moment
        self._peer_kits = theirs & ours
        orphans = theirs - ours
        if orphans:
            self._commands.put({"discard": sorted(orphans)})
        for kit_id in ours - theirs:
            self.store.discard(bytes.fromhex(kit_id))
        if orphans or ours - theirs:
            event("kits without a partner deleted", here=len(ours - theirs), there=len(orphans))
        self._count()
        self._refill()

    def _arrived(self, query: Query) -> None:
        if query.key in self._announced:
            self._match(query)

    def _abandoned(self, query: Query) -> None:
        if query.key in self.waiting:
            self._drop(query.key, QueryFailure(424, "the client withdrew this query"))

    def _match(self, query: Query) -> None:
        if query.matched or query.key not in self.waiting:
            return
        query.matched = True
        self._line.push(query.client, query)
        self._dispatch()

    def _admit(self, client: str) -> None:
        super()._admit(client)
        if not (self._ready or self._progress or self._peer_kits):
            raise QueryFailure(503, "no correlated randomness is left; the dealer must refill the stores", 1)

    def _dispatch(self) -> None:
        """Start as many matched queries as there are idle lanes and ready kits."""
        while len(self._line) and self._idle and self._ready:
            query = self._line.pop()
            if query.key not in self.waiting:
                continue  # dropped while it stood in line
            lane = self._idle.popleft()
            kit_id, prepared, offline_bytes = self._ready.popleft()
            self._announced.pop(query.key, None)
            self.running[query.key] = self.waiting.pop(query.key)
            lane.jobs.put(_Job(query, kit_id, prepared, offline_bytes))
        self._count()
        self._refill()

    def _finished(self, lane: _Lane, job: _Job, answer: Answer) -> None:
        self._resolve(job.query, answer)
        self._release(lane)

    def _release(self, lane: _Lane) -> None:
        """A lane is free for the next query, unless its epoch ended meanwhile."""
        if lane.epoch == self._epoch:
            self._idle.append(lane)
            self._dispatch()
        else:
            lane.jobs.put(None)

    def _drop(self, key: str, failure: QueryFailure) -> None:
        """End a query that does not run yet, at both servers."""
        if key in self.running:
            return
        self._announced.pop(key, None)
        if (query := self.waiting.get(key)) is not None:
            self._resolve(query, failure)
        self._commands.put({"drop": key, "status": failure.status, "message": failure.message})

    async def _tick(self) -> None:
        """Expire halves without a partner and matched queries that nothing serves."""
        while True:
            await asyncio.sleep(_TICK)
            now, limit = self._now(), self.settings.half_expiry
            lonely = QueryFailure(424, f"the other half did not arrive within {limit:g} s; send both with a new id")
            for key, arrived in list(self._announced.items()):
                if now - arrived > limit and key not in self.waiting:
                    self._drop(key, lonely)
            for query in list(self.waiting.values()):
                age = now - query.arrived
                if not query.matched and age > limit:
                    self._drop(query.key, lonely)
                elif query.matched and age > self.settings.timeout:
                    busy = "no lane or no correlated randomness became free in time; ask again"
                    self._drop(query.key, QueryFailure(503, busy, 1))
            self._refill()

    # ------------------------------------------------------------------ material

    def _stored(self, kit_ids: list[str]) -> None:
        self._refill()

    def supply_idle(self) -> None:
        self._refill()

    def _refill(self) -> None:
        """Start to prepare kits that both servers hold, up to the number kept ready."""
        while self._peer_kits and len(self._ready) + len(self._progress) < self.settings.ready:
            kit_id = self._peer_kits.pop()
            self._progress[kit_id] = _Half()
            self._commands.put({"prepare": kit_id})
            self._begin_prepare(kit_id, self._own_prepared)
        self._count()
        if len(self._peer_kits) < self.settings.ahead:
            self.wanted.set()

    def _own_prepared(self, kit_id: str, result: Any) -> None:
        if isinstance(result, AutorepError):
            self._progress.pop(kit_id, None)
            self._commands.put({"forget": kit_id})
            return
        self._step_ready(kit_id, own=result)

    def _step_ready(self, kit_id: str, own: tuple[PreparedQuery, int] | None = None, peer: bool = False) -> None:
        half = self._progress.get(kit_id)
        if half is None:
            return  # of an epoch that ended
        half.own, half.peer = own or half.own, peer or half.peer
        if half.own is not None and half.peer:
            del self._progress[kit_id]
            self._ready.append((kit_id, *half.own))
            self._dispatch()

    def _count(self) -> None:
        self.metrics.ready.set(len(self._ready))
        self.metrics.running.set(len(self.running))
        self.metrics.waiting.set(len(self.waiting))

    def kits_ready(self) -> int:
        return len(self._ready)

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()
