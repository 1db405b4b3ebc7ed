"""Party 0's decisions: it matches halves, chooses kits and lanes, and tells party 1.

Messages to party 1 (commands): prepare, forget or discard kits; drop a query. Messages from it (notes): kits stored,
prepared or missing; halves arrived, gone or refused. A message on a lane starts a query; it names query and kit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from autorep.service.limits import FairQueue
from autorep.service.machine import CloseLane, Command, Discard, Fetch, Forget, Machine, Prepare
from autorep.service.queries import Answer, QueryFailure, SessionSettings

_LONGEST_PAUSE = 20  # ticks


@dataclass
class _Progress:
    """How far one kit is on its way to being ready at both servers."""

    here: bool = False
    there: bool = False


class Leader(Machine):
    """One program at party 0."""

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings)
        self._announced: dict[str, float] = {}  # halves that wait at party 1 alone, by arrival
        self._line: FairQueue[str] = FairQueue()
        self._idle: deque[Hashable] = deque()
        self._busy: dict[Hashable, tuple[str, str]] = {}  # lane -> query, kit
        self._both: dict[str, None] = {}  # kits in both stores, oldest first; the newest are in memory and used first
        self._fresh: set[str] = set()  # kits stored since the last comparison: party 1's half may be on its way
        self._progress: dict[str, _Progress] = {}
        self._ready: deque[str] = deque()
        self._failures = self._pause = 0  # of preparations in a row; ticks to wait before the next

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def supplied(self) -> bool:
        return bool(self._ready or self._progress or self._both)

    # ------------------------------------------------------------------ events: lanes

    def lane_up(self, epoch: str, lane: Hashable) -> list[Command]:
        """A connection for queries is there."""
        if epoch == self.epoch:
            self._idle.append(lane)
            self._dispatch()
        else:
            self._out.append(CloseLane(lane, "this connection belongs to an epoch that ended; dial again"))
        return self._commands()

    def lane_down(self, lane: Hashable) -> list[Command]:
        """A connection for queries is gone, perhaps with a query."""
        if lane in self._idle:
            self._idle.remove(lane)
        if lane in self._busy:
            failure = QueryFailure(503, "the link between the servers broke; ask again", 1, "link")
            self._finish(lane, failure)
        return self._commands()

    def finished(self, now: float, lane: Hashable, outcome: Answer | QueryFailure) -> list[Command]:
        """A lane's query has run; after a failure the lane is of no further use."""
        if lane in self._busy:
            self.pace.ended(now, bool(self._line))
            self._finish(lane, outcome)
            if isinstance(outcome, Answer):
                self._idle.append(lane)
                self._dispatch()
        return self._commands()

    def _finish(self, lane: Hashable, outcome: Answer | QueryFailure) -> None:
        key, kit = self._busy.pop(lane)
        self._end(key, outcome)
        if isinstance(outcome, QueryFailure):  # party 1 may not have heard of the query's start
            self._tell_drop(key, outcome)
            self._tell({"forget": kit})

    # ------------------------------------------------------------------ events: notes of party 1

    def noted(self, now: float, epoch: str, note: dict[str, Any]) -> list[Command]:
        """One report of party 1."""
        if epoch != self.epoch:
            return []
        match note:
            case {"all_stored": list(kits)}:
                self._compare_stores({str(kit) for kit in kits})
            case {"stored": list(kits)}:
                self._peer_stored({str(kit) for kit in kits})
            case {"prepared": str(kit)}:
                self._step_ready(kit, there=True)
            case {"missing": str(kit)}:
                if self._progress.pop(kit, None) is not None:
                    self._out.append(Forget(kit))
                    self._stumble()
            case {"arrived": str(key)}:
                self._announce(now, key)
            case {"gone": str(key)}:
                self._refuse_peer(key, QueryFailure(424, "the client withdrew the other half of this query"))
            case {"refused": str(key), "status": int(status), "message": str(message), "retry_after": wait}:
                failure = QueryFailure(status, message, None if wait is None else float(wait), "refused there")
                self._refuse_peer(key, failure)
        return self._commands()

    def _announce(self, now: float, key: str) -> None:
        if (refusal := self._refusals.get(key)) is not None:
            self._tell_drop(key, refusal)
        elif key in self.waiting:
            self._match(key)
        elif key not in self.running:
            self._announced[key] = now

    def _refuse_peer(self, key: str, failure: QueryFailure) -> None:
        if key not in self.running:
            self._refuse(key, failure)

    def _peer_stored(self, kits: set[str]) -> None:
        self._both.update(dict.fromkeys(sorted(kits & self.stored)))
        self._order_discard(kits - self.stored - self._progress.keys())
        self._refill()

    def _compare_stores(self, theirs: set[str]) -> None:
        """Both must hold a kit; what only one holds is left over from a crash and is deleted."""
        theirs -= self._progress.keys()  # party 1 has not heard yet that it must prepare them
        both = theirs & self.stored
        self._both = {kit: None for kit in (*sorted(both - self._both.keys()), *self._both) if kit in both}
        self._order_discard(theirs - self.stored)
        lonely = self.stored - theirs - self._fresh
        self._fresh.clear()
        if lonely:
            self.stored -= lonely
            self._out.append(Discard(tuple(sorted(lonely))))
        self._refill()

    def _order_discard(self, kits: set[str]) -> None:
        if kits:
            self._tell({"discard": sorted(kits)})

    # ------------------------------------------------------------------ events: time and material

    def tick(self, now: float) -> list[Command]:
        """A moment passed: expire halves without a partner and matched queries that nothing serves."""
        limit = self.settings.half_expiry
        lonely = QueryFailure(
            424, f"the other half did not arrive within {limit:g} s; send both with a new id", None, "lonely"
        )
        for key, arrived in list(self._announced.items()):
            if now - arrived > limit:
                self._refuse(key, lonely)
        for key, half in list(self.waiting.items()):
            age = now - half.arrived
            if not half.matched and age > limit:
                self._refuse(key, lonely)
            elif half.matched and age > self.settings.timeout:
                busy = "no lane or no correlated randomness became free in time; ask again"
                self._refuse(key, QueryFailure(503, busy, self.retry_after(now), "timeout"))
        self._pause = max(0, self._pause - 1)
        self._refill(idle=not self.running and not self._line)
        return self._commands()

    def prepared(self, epoch: str, kit: str, good: bool) -> list[Command]:
        if epoch != self.epoch or kit not in self._progress:
            self._out.append(Forget(kit))
        elif good:
            self._failures = 0
            self._step_ready(kit, here=True)
        else:
            del self._progress[kit]
            self._tell({"forget": kit})
            self._stumble()
        return self._commands()

    def _step_ready(self, kit: str, here: bool = False, there: bool = False) -> None:
        progress = self._progress.get(kit)
        if progress is None:
            return
        progress.here |= here
        progress.there |= there
        if progress.here and progress.there:
            del self._progress[kit]
            self._ready.append(kit)
            self._dispatch()

    def _stumble(self) -> None:
        """A kit could not be prepared: a little patience before the next, or a broken disk would use up all."""
        self._failures += 1
        self._pause = min(_LONGEST_PAUSE, 2**self._failures // 2)
        self._refill()

    def _refill(self, idle: bool = False) -> None:
        """Start to prepare kits that both servers hold.

        In idle moments up to the number kept ready; while queries run, which it would slow down, only what queries
        wait for and a small reserve.
        """
        settings = self.settings
        reserve = max(1, min(settings.lanes, settings.ready // 2))
        goal = settings.ready if idle else min(settings.ready, max(len(self._line), reserve))
        wanted = goal - len(self._ready) - len(self._progress)
        while self._both and wanted > 0 and not self._pause:
            kit, _ = self._both.popitem()
            wanted -= 1
            self.stored.discard(kit)
            self._progress[kit] = _Progress()
            self._tell({"prepare": kit})
            self._out.append(Prepare(kit))
        if len(self._both) < self.settings.ahead:
            self._out.append(Fetch())

    # ------------------------------------------------------------------ queries

    def _overfull(self, now: float, client: str) -> QueryFailure | None:
        if not self.problems and not self.supplied:
            message = f"no correlated randomness is left; {self.settings.supplier} must refill the stores"
            return QueryFailure(503, message, 1, "material")
        return super()._overfull(now, client)

    def _half_arrived(self, now: float, key: str) -> None:
        if key in self._announced:
            self._match(key)

    def _match(self, key: str) -> None:
        half = self.waiting[key]
        self._announced.pop(key, None)
        if not half.matched:
            half.matched = True
            self._line.push(half.client, key)
            self._dispatch()

    def _dispatch(self) -> None:
        """Start as many matched queries as there are idle lanes and ready kits."""
        while self._line and self._idle and self._ready:
            key = self._line.pop()
            if key not in self.waiting:
                continue  # dropped while it stood in line
            lane, kit = self._idle.popleft(), self._ready.popleft()
            self._busy[lane] = key, kit
            self._start(lane, key, kit)
        self._refill()

    def _refuse(self, key: str, failure: QueryFailure) -> None:
        self._refusals.add(key, failure)
        self._announced.pop(key, None)
        self._end(key, failure)
        self._tell_drop(key, failure)

    def _tell_drop(self, key: str, failure: QueryFailure) -> None:
        message = {"drop": key, "status": failure.status, "message": failure.message}
        self._tell({**message, "retry_after": failure.retry_after})

    # ------------------------------------------------------------------ epochs

    def _greet(self) -> None:
        """Party 1 speaks first: it reports its store."""

    def _stock_changed(self, kits: list[str]) -> None:
        self._fresh.update(kits)
        self._refill()

    def _throw_away(self) -> None:
        for kit in (*self._ready, *self._progress):
            self._out.append(Forget(kit))
        for lane in self._idle:
            self._out.append(CloseLane(lane, "the epoch ended"))
        self._announced.clear()
        self._both.clear()
        self._fresh.clear()
        self._progress.clear()
        self._ready.clear()
        self._idle.clear()
        self._line = FairQueue()
