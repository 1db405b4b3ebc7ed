"""Party 0's decisions: it matches halves, chooses kits and lanes, and tells party 1.

Messages to party 1 (commands): prepare, forget or discard kits; drop a query. Messages from it (notes): kits stored,
prepared or missing; halves arrived, gone or refused. A message on a lane starts a query; it names query and kit.

Where kits for several queries are in use and as many queries wait, they run together, whoever asked them: one pass over
the program, one image of the batch each. Fewer run each alone: a kit that is not full saves nothing. Such kits are
fetched only while there is a crowd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from autorep.service.limits import FairQueue
from autorep.service.machine import CloseLane, Command, Discard, Fetch, Forget, Machine, Outcome, Prepare
from autorep.service.queries import QueryFailure, SessionSettings
from autorep.service.stock import Stock, size_of

_LONGEST_PAUSE = 20  # ticks
_CROWD = 120  # ticks for which kits for several queries are kept in stock after the last crowd


class Leader(Machine):
    """One program at party 0."""

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings)
        self._announced: dict[str, float] = {}  # halves that wait at party 1 alone, by arrival
        self._line: FairQueue[str] = FairQueue()
        self._idle: deque[Hashable] = deque()
        self._busy: dict[Hashable, tuple[tuple[str, ...], str]] = {}  # lane -> queries, kit
        self._stock = Stock(settings.sizes)
        self._crowd = 0  # ticks for which there counts as being a crowd
        self._fresh: set[str] = set()  # kits stored since the last comparison: party 1's half may be on its way
        self._failures = self._pause = 0  # of preparations in a row; ticks to wait before the next
        self._flows = False  # whether kits are on their way from whoever makes them
        self._calm, self._ran = True, False  # no query ran since the tick before the last; one did since the last

    @property
    def ready(self) -> int:
        return len(self._stock.ready)

    @property
    def supplied(self) -> bool:
        return self._flows or self._stocked

    @property
    def _stocked(self) -> bool:
        return any(self._stock.any_of(size) for size in self.settings.sizes)

    def missing(self) -> tuple[int, int]:
        """The kits to fetch next, by batch size and number; from any thread.

        While queries run, which making and storing kits would slow down, those that memory holds are used up first.
        """
        stored, settings = [size_of(kit) for kit in tuple(self.stored)], self.settings
        wishes = [(1, settings.ahead - settings.slack * (not self._calm))]
        if self._crowd:
            wishes.insert(0, (settings.batch, max(1, settings.held // settings.batch)))  # all of them in memory
            if len(self._line) < settings.batch:  # the next ones run alone
                wishes.insert(0, (1, settings.ready))
        for size, ahead in wishes:
            if (missing := ahead - stored.count(size)) > 0:
                return size, missing
        return 1, 0

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

    def finished(self, now: float, lane: Hashable, outcome: Outcome) -> list[Command]:
        """What a lane had to do has run; after a failure the lane is of no further use."""
        if lane in self._busy:
            self._ran = True
            for _ in self._busy[lane][0]:
                self.pace.ended(now, bool(self._line))
            self._finish(lane, outcome)
            if not isinstance(outcome, QueryFailure):
                self._idle.append(lane)
                self._dispatch()
            self._refill()
        return self._commands()

    def _finish(self, lane: Hashable, outcome: Outcome) -> None:
        keys, kit = self._busy.pop(lane)
        self._end_all(keys, outcome)
        if isinstance(outcome, QueryFailure):  # party 1 may not have heard of their start
            for key in keys:
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
                if self._stock.progress.pop(kit, None) is not None:
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
        self._stock.both.update(dict.fromkeys(sorted(kits & self.stored)))
        self._order_discard(kits - self.stored - self._stock.progress.keys())
        self._refill()

    def _compare_stores(self, theirs: set[str]) -> None:
        """Both must hold a kit; what only one holds is left over from a crash and is deleted."""
        theirs -= self._stock.progress.keys()  # party 1 has not heard yet that it must prepare them
        both, known = theirs & self.stored, self._stock.both
        self._stock.both = {kit: None for kit in (*sorted(both - known.keys()), *known) if kit in both}
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
        self._pause, self._crowd = max(0, self._pause - 1), max(0, self._crowd - 1)
        self._calm, self._ran = self._at_rest and not self._ran, False
        self._refill()
        return self._commands()

    @property
    def _at_rest(self) -> bool:
        return not self.running and not self._line

    def supply(self, flows: bool) -> list[Command]:
        """Whether whoever makes kits is at work: then a query may wait for one."""
        self._flows = flows
        return self._commands()

    def prepared(self, epoch: str, kit: str, good: bool) -> list[Command]:
        if epoch != self.epoch or kit not in self._stock.progress:
            self._out.append(Forget(kit))
        elif good:
            self._failures = 0
            self._step_ready(kit, here=True)
        else:
            del self._stock.progress[kit]
            self._tell({"forget": kit})
            self._stumble()
        return self._commands()

    def _step_ready(self, kit: str, here: bool = False, there: bool = False) -> None:
        if self._stock.step(kit, here, there):
            self._dispatch()

    def _stumble(self) -> None:
        """A kit could not be prepared: a little patience before the next, or a broken disk would use up all."""
        self._failures += 1
        self._pause = min(_LONGEST_PAUSE, 2**self._failures // 2)
        self._refill()

    def _refill(self) -> None:
        """Start to prepare kits that both servers hold.

        When no query came for a while, up to the number kept ready. Preparing slows down queries: while they run, only
        what others wait for; between them, while a client reads its answer, a small reserve.
        """
        for size in self.settings.sizes:
            wanted = self._goal(size) - self._stock.coming(size)
            while wanted > 0 and not self._pause and (kit := self._stock.begin(size)) is not None:
                wanted -= 1
                self.stored.discard(kit)
                self._tell({"prepare": kit})
                self._out.append(Prepare(kit))
        if self.missing()[1]:
            self._out.append(Fetch())

    def _goal(self, size: int) -> int:
        """Kits of a size that should be ready."""
        settings, line = self.settings, len(self._line)
        if size > 1 and self._crowd:
            return min(settings.ready, max(1, min(settings.lanes, line // size) // 2))  # lanes take turns
        if size > 1:
            return int(line > 0 and not self._flows and not self._stock.any_of(1))  # a last resort
        reserve = max(1, min(settings.lanes, settings.ready // 2))
        if self._crowd and settings.batch > 1 and self._stock.any_of(settings.batch):
            return reserve  # the crowd is served by the others
        if self._calm:
            return settings.ready
        return min(settings.ready, max(line, 1 if self.running else reserve))

    # ------------------------------------------------------------------ queries

    def _overfull(self, now: float, client: str) -> QueryFailure | None:
        if not self.problems and not self._stocked:
            patient = self._flows and self._wait(now) < self.settings.timeout / 4
            if not patient:
                message = f"no correlated randomness is left; {self.settings.supplier} must refill the stores"
                return QueryFailure(503, message, self.retry_after(now), "material")
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
            self._standing()
            self._dispatch()

    def _dispatch(self) -> None:
        """Start as many matched queries as there are idle lanes and ready kits."""
        while self._line and self._idle and (size := self._next_size()):
            keys = self._next_in_line(size)
            lane, kit = self._idle.popleft(), self._stock.take(size)
            self._busy[lane] = keys, kit
            self._calm, self._ran = False, True
            self._start(lane, keys, kit)
        self._refill()

    def _next_size(self) -> int:
        """Batch size of the kit to use next: one that the queries in line fill; 0 if none is ready.

        Queries that fill one that will be ready soon wait for it: alone, they would keep the others waiting for longer.
        Where there is no other kit at all, a larger one serves fewer.
        """
        standing = self._standing()
        if not standing:
            self._line = FairQueue()  # all of it was dropped
            return 0
        for size in self.settings.sizes:
            last_resort = size > 1 and not self._stock.any_of(1)
            if self._stock.has_ready(size) and (standing >= size or last_resort):
                return size
            if 1 < size <= standing and self._stock.coming(size):
                break
        return 0

    def _standing(self) -> int:
        """How many queries could run. There is a crowd when one whole batch may run while the next one gathers."""
        standing = sum(half.matched for half in self.waiting.values())
        if 1 < self.settings.batch <= (standing + len(self.running)) // 2:
            self._crowd = _CROWD
        return standing

    def _next_in_line(self, count: int) -> tuple[str, ...]:
        """At most so many queries, clients in turn; those dropped while they stood in line are passed over."""
        keys: list[str] = []
        while self._line and len(keys) < count:
            key = self._line.pop()
            if key in self.waiting:
                keys.append(key)
        return tuple(keys)

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
        for kit in self._stock.clear():
            self._out.append(Forget(kit))
        for lane in self._idle:
            self._out.append(CloseLane(lane, "the epoch ended"))
        self._announced.clear()
        self._fresh.clear()
        self._idle.clear()
        self._line = FairQueue()
