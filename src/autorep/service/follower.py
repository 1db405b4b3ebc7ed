"""Party 1's side: it reports what arrives and does what party 0 decides.

A half that was reported stays here until party 0 runs or drops it, so the two servers never disagree about it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from autorep.service.machine import CloseLane, Command, Discard, Forget, Machine, Outcome, Prepare
from autorep.service.queries import QueryFailure, SessionSettings
from autorep.service.stock import size_of


class Follower(Machine):
    """One program at party 1."""

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings)
        self._preparing: set[str] = set()
        self._prepared: set[str] = set()

    @property
    def ready(self) -> int:
        return len(self._prepared)

    @property
    def supplied(self) -> bool:
        return bool(self._prepared or self._preparing or self.stored)

    # ------------------------------------------------------------------ events: what party 0 decides

    def told(self, epoch: str, command: dict[str, Any]) -> list[Command]:
        """One decision of party 0."""
        if epoch != self.epoch:
            return []
        match command:
            case {"prepare": str(kit)}:
                self._begin(kit)
            case {"forget": str(kit)}:
                self._preparing.discard(kit)
                self._prepared.discard(kit)
                self._out.append(Forget(kit))
            case {"discard": list(kits)}:
                names = tuple(str(kit) for kit in kits)
                self.stored.difference_update(names)
                self._out.append(Discard(names))
            case {"drop": str(key), "status": int(status), "message": str(message)}:
                failure = QueryFailure(status, message, command.get("retry_after"), "refused there")
                if key in self.waiting:
                    self._end(key, failure)
                elif key not in self.running:
                    self._refusals.add(key, failure)
        return self._commands()

    def asked(self, epoch: str, lane: Hashable, keys: tuple[str, ...], kit: str) -> list[Command]:
        """Party 0 starts one or several queries on a lane."""
        here = kit in self._prepared
        fits = here and len(set(keys)) == len(keys) <= size_of(kit)
        if epoch == self.epoch and fits and all(key in self.waiting for key in keys):
            self._prepared.remove(kit)
            self._start(lane, keys, kit)
            return self._commands()
        if here:
            self._prepared.remove(kit)
            self._out.append(Forget(kit))
        for key in keys:
            if key in self.waiting:
                self._end(key, QueryFailure(502, "the servers lost step; ask again", 1, "lost step"))
        self._out.append(CloseLane(lane, "party 1 does not have this query or kit"))
        return self._commands()

    def finished(self, now: float, keys: tuple[str, ...], outcome: Outcome) -> list[Command]:
        """What was started together has run."""
        for _ in keys:
            self.pace.ended(now, bool(self.waiting))
        self._end_all(keys, outcome)
        return self._commands()

    def _begin(self, kit: str) -> None:
        if kit in self.stored:
            self.stored.remove(kit)
            self._preparing.add(kit)
            self._out.append(Prepare(kit))
        else:
            self._tell({"missing": kit})

    # ------------------------------------------------------------------ events: material

    def prepared(self, epoch: str, kit: str, good: bool) -> list[Command]:
        if epoch != self.epoch or kit not in self._preparing:
            self._out.append(Forget(kit))
            return self._commands()
        self._preparing.remove(kit)
        if good:
            self._prepared.add(kit)
        self._tell({"prepared" if good else "missing": kit})
        return self._commands()

    def supply_idle(self) -> list[Command]:
        """Nothing is on its way from the dealer: a good moment to compare the two stores."""
        self._tell({"all_stored": sorted(self.stored)})
        return self._commands()

    # ------------------------------------------------------------------ queries

    def _half_arrived(self, now: float, key: str) -> None:
        self._tell({"arrived": key})

    def _refuse(self, key: str, failure: QueryFailure) -> None:
        if failure.reason == "withdrawn":
            self._tell({"gone": key})
        else:
            facts = {"status": failure.status, "message": failure.message, "retry_after": failure.retry_after}
            self._tell({"refused": key, **facts})
        if key not in self.waiting:
            self._refusals.add(key, failure)
            self._end(key, failure)

    # ------------------------------------------------------------------ epochs

    def _greet(self) -> None:
        self._tell({"all_stored": sorted(self.stored)})

    def _stock_changed(self, kits: list[str]) -> None:
        self._tell({"stored": kits})

    def _throw_away(self) -> None:
        for kit in (*self._prepared, *self._preparing):
            self._out.append(Forget(kit))
        self._prepared.clear()
        self._preparing.clear()
