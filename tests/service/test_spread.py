"""How evenly clients are served: leader and follower decide, a processor that exists only in numbers does the work.

Everything a deployment does for a query is work of so many milliseconds for one of its threads: the client's, HTTP at
both servers, dealing, storing and preparing kits, and the run, in lock step. Threads share the cores evenly. Costs are
those of ResNet-20 with 5,652 ReLUs, so time here is as if all of it ran on a machine with two cores, but no machine's
load can change what comes out.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autorep.mpc.kit import kit_id
from autorep.mpc.transport import Entry
from autorep.service import machine as commands
from autorep.service.follower import Follower
from autorep.service.leader import Leader
from autorep.service.queries import Answer, QueryFailure, SessionSettings
from autorep.service.session import _PREPARERS
from autorep.service.stock import size_of

DEAL, STORE, PREPARE, RUN = {1: 23.0, 4: 72.0}, {1: 5.0, 4: 18.0}, {1: 10.4, 4: 29.0}, {1: 13.2, 4: 38.0}  # ms
ASK, TAKE_IN, GIVE_BACK, MESSAGE, WAITS, PARTS = 0.8, 1.5, 0.8, 0.3, 4.0, 8
ANSWER = Answer(np.zeros(1), 0.01, Entry(), 1)
Then = Callable[[], Any]


class Deployment:
    """Dealer, two servers and clients who ask again as soon as they are answered, on `cores` cores."""

    def __init__(self, clients: int, cores: float) -> None:
        self.now, self.cores = 0.0, cores
        self.waited: list[tuple[float, float]] = []  # moment, milliseconds
        self.refused: Counter[str] = Counter()
        self.together: Counter[int] = Counter()
        self._numbers, self._random = itertools.count(), random.Random(1)
        self._timers: list[tuple[float, int, Then]] = []
        self._work: dict[str, deque[list[Any]]] = {}  # thread -> milliseconds left, what then
        self._asked: dict[str, tuple[int, float, set[int]]] = {}  # query -> client, since when, who answered
        self._dealing = False
        self._to_prepare: tuple[deque[str], deque[str]] = deque(), deque()
        settings = SessionSettings(batch=4, held=16, slack=16)
        self.leader, self.follower = Leader(settings), Follower(settings)
        self.machines = self.leader, self.follower
        for step in ("opened", "connected"):
            for party in (0, 1):
                self._do(party, getattr(self.machines[party], step)("e", *([()] if step == "opened" else [])))
        self._do(0, self.leader.supply(True))
        for lane in range(settings.lanes):
            self._do(0, self.leader.lane_up("e", lane))
        self._tick()
        self._fetch()
        for client in range(clients):
            self._after(2000.0 + 7 * client, lambda client=client: self._ask(client, self.now))

    def run(self, seconds: float) -> None:
        """Let time pass: always up to the next moment at which something ends or is due."""
        while self.now < 1000 * seconds:
            rates = self._rates()
            left = {thread: self._work[thread][0][0] / rate for thread, rate in rates.items()}
            thread = min(left, key=lambda name: left[name], default=None)
            step = min(self._timers[0][0] - self.now, left[thread] if thread else float("inf"))
            for name, rate in rates.items():
                self._work[name][0][0] -= rate * step
            self.now += step
            if thread is None or step < left[thread]:
                heapq.heappop(self._timers)[2]()
            else:
                self._work[thread].popleft()[1]()

    def spread(self, after: float) -> float:
        """p95 over p50 of what clients waited, from so many seconds on."""
        waited = [milliseconds for moment, milliseconds in self.waited if moment > 1000 * after]
        return float(np.percentile(waited, 95) / np.percentile(waited, 50))

    def rate(self, after: float) -> float:
        """Answers a second, from so many seconds on."""
        return sum(moment > 1000 * after for moment, _ in self.waited) / (self.now / 1000 - after)

    # ------------------------------------------------------------------ time and processor

    def _after(self, milliseconds: float, then: Then) -> None:
        heapq.heappush(self._timers, (self.now + milliseconds, next(self._numbers), then))

    def _spend(self, thread: str, milliseconds: float, then: Then) -> None:
        """Work for a thread, which does one thing after another; no two take exactly as long."""
        self._work.setdefault(thread, deque()).append([milliseconds * self._random.uniform(0.9, 1.1), then])

    def _rates(self) -> dict[str, float]:
        """The share of a core that each busy thread has, at most a whole one."""
        busy = [thread for thread, queue in self._work.items() if queue]
        return dict.fromkeys(busy, min(1.0, self.cores / max(1, len(busy))))

    def _tick(self) -> None:
        for party, machine in enumerate(self.machines):
            self._do(party, machine.tick(self.now / 1000))
        self._after(250.0, self._tick)

    # ------------------------------------------------------------------ what the machines command

    def _do(self, party: int, todo: list[commands.Command]) -> None:
        for command in todo:
            match command:
                case commands.Tell(message) if party == 0:
                    self._after(MESSAGE, lambda m=message: self._do(1, self.follower.told("e", m)))
                case commands.Tell(message):
                    self._after(MESSAGE, lambda m=message: self._do(0, self.leader.noted(self.now / 1000, "e", m)))
                case commands.Prepare(kit):
                    self._to_prepare[party].append(kit)
                    self._prepare(party)
                case commands.Run(lane, keys, kit) if party == 0:
                    self.together[len(keys)] += 1
                    self._after(MESSAGE, lambda run=(lane, keys, kit): self._do(1, self.follower.asked("e", *run)))
                case commands.Run(lane, keys, kit):
                    self._run_part(lane, keys, RUN[size_of(kit)] / PARTS, PARTS)
                case commands.End(key, outcome):
                    self._end(party, key, outcome)
                case commands.Fetch():
                    self._fetch()
                case _:
                    raise AssertionError(f"nothing here calls for {command}")

    def _prepare(self, party: int) -> None:
        """Some threads at each server prepare kits."""
        for number in range(_PREPARERS):
            thread, waiting = f"prepare {party} {number}", self._to_prepare[party]
            if waiting and not self._work.get(thread):
                kit = waiting.popleft()
                self._spend(thread, PREPARE[size_of(kit)], lambda kit=kit: self._prepared(party, kit))

    def _prepared(self, party: int, kit: str) -> None:
        self._do(party, self.machines[party].prepared("e", kit, good=True))
        self._prepare(party)

    def _run_part(self, lane: Any, keys: tuple[str, ...], milliseconds: float, left: int) -> None:
        """Both parties compute, then wait for each other."""
        if not left:
            answers = (ANSWER,) * len(keys)
            self._do(0, self.leader.finished(self.now / 1000, lane, answers))
            self._do(1, self.follower.finished(self.now / 1000, keys, answers))
            return
        there: list[None] = []

        def meet() -> None:
            there.append(None)
            if len(there) == 2:
                self._after(WAITS / PARTS, lambda: self._run_part(lane, keys, milliseconds, left - 1))

        for party in (0, 1):
            self._spend(f"lane {party} {lane}", milliseconds, meet)

    # ------------------------------------------------------------------ the dealer

    def _fetch(self) -> None:
        """Party 0 asks for kits whenever some are missing, and stores one while the next is dealt."""
        size, missing = self.leader.missing()
        if not self._dealing and missing:
            self._dealing = True
            self._deal(size, min(missing, 2))

    def _deal(self, size: int, left: int) -> None:
        kit = kit_id(bytes(8), size, next(self._numbers).to_bytes(7, "big")).hex()

        def stored() -> None:
            self._do(0, self.leader.put([kit]))
            self._spend("kits 1", STORE[size], lambda: self._do(1, self.follower.put([kit])))
            if left == 1:
                self._dealing = False
                self._fetch()

        def dealt() -> None:
            self._spend("kits 0", STORE[size], stored)
            if left > 1:
                self._deal(size, left - 1)

        self._spend("dealer", DEAL[size], dealt)

    # ------------------------------------------------------------------ clients

    def _ask(self, client: int, since: float) -> None:
        key = f"{client}: {next(self._numbers)}"
        self._asked[key] = client, since, set()

        def shared() -> None:
            for party in (0, 1):
                self._spend(f"http {party}", TAKE_IN, lambda party=party: self._arrive(party, key))

        self._spend("clients", ASK, shared)

    def _arrive(self, party: int, key: str) -> None:
        self._do(party, self.machines[party].arrived(self.now / 1000, "everybody", key))

    def _end(self, party: int, key: str, outcome: Any) -> None:
        client, since, answered = self._asked.get(key, (0, 0.0, None))
        if answered is None:
            return  # refused at the other server before
        if isinstance(outcome, QueryFailure):
            del self._asked[key]
            self.refused[outcome.reason] += 1
            pause = 1000 * (outcome.retry_after or 0.1) * self._random.uniform(1.0, 1.5)
            self._after(pause, lambda: self._ask(client, since))
            return
        self._spend(f"http {party}", GIVE_BACK, lambda: self._given_back(key, party))

    def _given_back(self, key: str, party: int) -> None:
        client, since, answered = self._asked[key]
        answered.add(party)
        if len(answered) == 2:
            del self._asked[key]
            self.waited.append((self.now, self.now - since))
            self._ask(client, self.now)


@pytest.mark.parametrize("cores", [2, 6])
@pytest.mark.parametrize("clients", [1, 4, 6, 8, 10, 16])
def test_clients_wait_about_equally_long_and_nobody_is_sent_away(clients: int, cores: int) -> None:
    deployment = Deployment(clients, cores)
    deployment.run(seconds=14)
    assert not deployment.refused
    assert deployment.spread(after=5) < 1.35
    if clients >= 8:
        assert deployment.together[4] > 0.8 * sum(deployment.together.values()) - 40, "a crowd is served together"
    assert deployment.rate(after=5) > {2: 20, 6: 35}[cores], "and nobody waits for the sake of evenness"


def test_queries_too_few_to_fill_a_kit_run_each_alone() -> None:
    deployment = Deployment(clients=3, cores=2)
    deployment.run(seconds=6)
    assert set(deployment.together) == {1}
