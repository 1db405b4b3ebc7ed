"""Leader and follower without processes: joined by links that break, lanes that fail and servers that crash.

`World` plays everything around the two machines (disks, preparations, links, clients) and checks at every step that no
kit is used twice, that both servers use a kit for the same queries in the same order, that every query gets the answer
of its own place, and that no query ends twice. At the end, when the links are healed, every query must have ended and a
new one must be answered.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autorep.mpc.kit import kit_id
from autorep.mpc.transport import Entry
from autorep.service import machine as commands
from autorep.service.follower import Follower
from autorep.service.leader import Leader
from autorep.service.machine import Command, Machine, Pace
from autorep.service.queries import Answer, QueryFailure, SessionSettings
from autorep.service.stock import size_of

SETTINGS = SessionSettings(
    lanes=2, ready=3, ahead=8, held=8, slack=3, queue=6, per_client=4, half_expiry=15, timeout=30
)
BROKEN = QueryFailure(502, "broken", 1)


def answer_to(key: str) -> Answer:
    """One server's share of the answer to a query, which tells whose it is."""
    return Answer(np.frombuffer(key.encode(), np.uint8), 0.01, Entry(), 10)


def answered(key: str, outcome: Any) -> bool:
    return isinstance(outcome, Answer) and outcome.share.tobytes() == key.encode()


class World:
    """Two machines and all that lies between and around them; up to `batch` queries run together."""

    def __init__(self, batch: int = 1) -> None:
        self.now = 0.0
        self.settings = dataclasses.replace(SETTINGS, batch=batch)
        self.machines: list[Machine] = [Leader(self.settings), Follower(self.settings)]
        self.disk: list[set[str]] = [set(), set()]
        self.preparing: list[deque[tuple[str, str]]] = [deque(), deque()]
        self.prepared: list[set[str]] = [set(), set()]
        self.used: list[dict[str, tuple[str, ...]]] = [{}, {}]  # kit -> queries, for ever
        self.open: list[set[str]] = [set(), set()]
        self.ended: list[dict[str, Any]] = [{}, {}]
        self.boxes: tuple[deque[dict[str, Any]], deque[dict[str, Any]]] = (deque(), deque())  # to party 1, to party 0
        self.lanes: dict[int, deque[tuple[tuple[str, ...], str]]] = {}
        self.running: list[dict[int, tuple[tuple[str, ...], str]]] = [{}, {}]  # lane -> queries, kit
        self.linked: str | None = None
        self.lost: set[tuple[int, str]] = set()  # who has yet to notice that an epoch's links are cut
        self.numbers = itertools.count()

    @property
    def leader(self) -> Leader:
        assert isinstance(self.machines[0], Leader)
        return self.machines[0]

    @property
    def follower(self) -> Follower:
        assert isinstance(self.machines[1], Follower)
        return self.machines[1]

    # ------------------------------------------------------------------ commands

    def perform(self, party: int, todo: list[Command]) -> None:
        for command in todo:
            match command:
                case commands.Tell(message):
                    assert self.machines[party].epoch is not None
                    if self.machines[party].epoch == self.linked:
                        self.boxes[party].append(message)
                case commands.Prepare(kit):
                    epoch = self.machines[party].epoch
                    assert epoch is not None
                    self.preparing[party].append((epoch, kit))
                case commands.Forget(kit):
                    self.prepared[party].discard(kit)
                case commands.Discard(kits):
                    self.disk[party] -= set(kits)
                case commands.Run(lane, keys, kit):
                    self.run(party, lane, keys, kit)  # type: ignore[arg-type]
                case commands.CloseLane(lane, _):
                    self.break_lane(lane)  # type: ignore[arg-type]
                case commands.End(key, outcome):
                    if key in self.open[party]:
                        assert answered(key, outcome) or isinstance(outcome, QueryFailure), "another's answer"
                        self.open[party].remove(key)
                        self.ended[party][key] = outcome
                case commands.CutLinks(epoch, _):
                    self.cut(epoch)

    def run(self, party: int, lane: int, keys: tuple[str, ...], kit: str) -> None:
        assert kit in self.prepared[party], "runs with a kit that is not prepared"
        assert kit not in self.used[party], "a kit is used twice"
        assert 0 < len(set(keys)) == len(keys) <= size_of(kit), "not so many queries as the kit is for"
        assert self.open[party].issuperset(keys), "runs a query that is over"
        self.prepared[party].remove(kit)
        self.used[party][kit] = keys
        assert self.used[0].get(kit) == keys, "the servers use a kit for different queries"
        self.running[party][lane] = keys, kit
        if party == 0:
            if lane in self.lanes:
                self.lanes[lane].append((keys, kit))
            else:  # it broke, and the leader has not noticed
                self.lane_gone(lane)

    # ------------------------------------------------------------------ links

    def dial(self) -> None:
        """Party 1 opens a new epoch."""
        self.cut(self.linked)
        for party, epoch in list(self.lost):
            self.notice(party, epoch)
        name = f"epoch {next(self.numbers)}"
        self.perform(0, self.leader.ended(None, "party 1 dialled anew"))
        self.perform(0, self.leader.opened(name, self.disk[0]))
        self.perform(1, self.follower.opened(name, self.disk[1]))
        self.linked = name
        self.perform(0, self.leader.connected(name))
        self.perform(1, self.follower.connected(name))

    def cut(self, epoch: str | None) -> None:
        """All links of the present epoch break; each server will notice in its time."""
        if epoch is None or epoch != self.linked:
            return
        self.linked = None
        for box in self.boxes:
            box.clear()
        self.lost |= {(0, epoch), (1, epoch)}
        for lane in list(self.lanes):
            self.break_lane(lane)

    def notice(self, party: int, epoch: str) -> None:
        self.lost.discard((party, epoch))
        self.perform(party, self.machines[party].ended(epoch, "the link broke"))

    def lane_up(self) -> None:
        assert self.linked is not None
        lane = next(self.numbers)
        self.lanes[lane] = deque()
        self.perform(0, self.leader.lane_up(self.linked, lane))

    def break_lane(self, lane: int) -> None:
        self.lanes.pop(lane, None)
        self.lane_gone(lane)
        if (job := self.running[1].pop(lane, None)) is not None:
            self.perform(1, self.follower.finished(self.now, job[0], BROKEN))

    def lane_gone(self, lane: int) -> None:
        """Party 0's thread of a lane ends."""
        if self.running[0].pop(lane, None) is not None:
            self.perform(0, self.leader.finished(self.now, lane, BROKEN))
        self.perform(0, self.leader.lane_down(lane))

    def deliver(self, to: int) -> None:
        message = self.boxes[1 - to].popleft()
        assert self.linked is not None
        if to == 0:
            self.perform(0, self.leader.noted(self.now, self.linked, message))
        else:
            self.perform(1, self.follower.told(self.linked, message))

    def deliver_lane(self, lane: int) -> None:
        keys, kit = self.lanes[lane].popleft()
        assert self.linked is not None
        self.perform(1, self.follower.asked(self.linked, lane, keys, kit))

    # ------------------------------------------------------------------ work

    def finish_preparing(self, party: int, good: bool = True) -> None:
        epoch, kit = self.preparing[party].popleft()
        good = good and kit in self.disk[party]
        self.disk[party].discard(kit)
        if good:
            self.prepared[party].add(kit)
        self.perform(party, self.machines[party].prepared(epoch, kit, good))

    def finish_query(self, lane: int) -> None:
        keys, kit = self.running[1].pop(lane)
        assert self.running[0].pop(lane) == (keys, kit)
        answers = tuple(map(answer_to, keys))
        self.perform(0, self.leader.finished(self.now, lane, answers))
        self.perform(1, self.follower.finished(self.now, keys, answers))

    def deal(self, both: bool = True, size: int = 1) -> None:
        kit = kit_id(bytes(8), size, next(self.numbers).to_bytes(7, "big")).hex()
        for party in (0, 1) if both else (0,):
            self.disk[party].add(kit)
            self.perform(party, self.machines[party].put([kit]))

    def post(self, party: int, client: str, key: str) -> None:
        try:
            todo = self.machines[party].arrived(self.now, client, key)
        except QueryFailure as failure:
            self.ended[party].setdefault(key, failure)
            return
        self.open[party].add(key)
        self.perform(party, todo)

    def withdraw(self, party: int, key: str) -> None:
        self.perform(party, self.machines[party].withdrawn(key))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for party in (0, 1):
            self.perform(party, self.machines[party].tick(self.now))

    def crash(self, party: int) -> None:
        """A server loses all but its disk; its clients see their connections break."""
        self.machines[party] = Follower(self.settings) if party else Leader(self.settings)
        self.machines[party].stored = set(self.disk[party])
        for key in self.open[party]:
            self.ended[party][key] = BROKEN
        self.open[party].clear()
        self.prepared[party].clear()
        for _, kit in self.preparing[party]:
            self.disk[party].discard(kit)  # it may have been taken out already
        self.preparing[party].clear()
        self.running[party].clear()
        self.cut(self.linked)
        self.lost = {(each, epoch) for each, epoch in self.lost if each != party}

    # ------------------------------------------------------------------ the end

    def flow(self) -> None:
        """Let everything that is on its way arrive and everything begun finish."""
        while True:
            for lane in list(self.lanes):
                if lane in self.running[0] and lane in self.running[1]:
                    self.finish_query(lane)
            for party in (0, 1):
                while self.preparing[party]:
                    self.finish_preparing(party)
                while self.boxes[1 - party]:
                    self.deliver(party)
            for lane in list(self.lanes):
                while self.lanes.get(lane):
                    self.deliver_lane(lane)
            if not (any(self.boxes) or any(self.preparing) or any(self.running) or any(self.lanes.values())):
                return

    def heal(self) -> None:
        if self.linked is None:
            self.dial()
        while len(self.lanes) < SETTINGS.lanes:
            self.lane_up()
        for _ in range(2 * self.settings.queue):  # enough for all that wait, and for those whose kits were lost
            self.deal()
        self.flow()
        for _ in range(12):  # past every pause
            self.tick(SETTINGS.timeout)
            self.flow()


def check_rest(world: World) -> None:
    """When nothing moves any more, nothing is left behind and a query is answered."""
    world.heal()
    assert world.open == [set(), set()], "a query was lost"
    assert world.prepared[0] == set(world.leader._stock.ready), "party 0 keeps kits nobody will use"
    assert world.prepared[1] == world.follower._prepared == world.prepared[0], "party 1 keeps kits nobody will use"
    for party in (0, 1):
        assert not world.machines[party].running
        assert not world.machines[party].waiting
        assert not world.machines[party]._held
    for party in (0, 1):
        world.post(party, "last", "last query")
    world.flow()
    assert all(answered("last query", world.ended[party]["last query"]) for party in (0, 1))


class Interleavings(RuleBasedStateMachine):
    """Every order of events that hypothesis can think of."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.keys = itertools.count()
        self.posted: list[tuple[str, str]] = []

    @initialize(batch=st.sampled_from([1, 3]), kits=st.integers(0, 5), lanes=st.integers(0, 2), settled=st.booleans())
    def begin(self, batch: int, kits: int, lanes: int, settled: bool) -> None:
        self.world = World(batch)
        for number in range(kits):
            self.world.deal(size=(1, batch)[number % 2])
        self.world.dial()
        for _ in range(lanes):
            self.world.lane_up()
        if settled:
            self.world.heal()

    @rule(both=st.booleans(), large=st.booleans())
    def deal(self, both: bool, large: bool) -> None:
        self.world.deal(both, self.world.settings.batch if large else 1)

    @rule(client=st.sampled_from("abc"), first=st.integers(0, 1), halves=st.integers(0, 3))
    def ask(self, client: str, first: int, halves: int) -> None:
        key = f"query {next(self.keys)}"
        self.world.post(first, client, key)
        if halves:
            self.world.post(1 - first, client, key)
        self.posted.append((client, key))

    @precondition(lambda self: self.posted)
    @rule(data=st.data(), party=st.integers(0, 1), withdraw=st.booleans())
    def second_thoughts(self, data: st.DataObject, party: int, withdraw: bool) -> None:
        """The other half comes late, or twice, or a client gives up."""
        client, key = data.draw(st.sampled_from(self.posted))
        if withdraw:
            self.world.withdraw(party, key)
        else:
            self.world.post(party, client, key)

    @rule(party=st.integers(0, 1))
    def deliver(self, party: int) -> None:
        if self.world.boxes[1 - party]:
            self.world.deliver(party)

    @rule(party=st.integers(0, 1), good=st.integers(0, 4))
    def prepared(self, party: int, good: int) -> None:
        if self.world.preparing[party]:
            self.world.finish_preparing(party, good > 0)

    @rule()
    def lane_message(self) -> None:
        for lane, box in list(self.world.lanes.items()):
            if box:
                self.world.deliver_lane(lane)
                return

    @rule()
    def query_done(self) -> None:
        for lane in self.world.lanes:
            if lane in self.world.running[0] and lane in self.world.running[1]:
                self.world.finish_query(lane)
                return

    @precondition(lambda self: self.world.linked is not None and len(self.world.lanes) < 3)
    @rule()
    def lane_up(self) -> None:
        self.world.lane_up()

    @precondition(lambda self: self.world.lanes)
    @rule(data=st.data())
    def lane_breaks(self, data: st.DataObject) -> None:
        self.world.break_lane(data.draw(st.sampled_from(sorted(self.world.lanes))))

    @rule(rarely=st.integers(0, 9))
    def links_break(self, rarely: int) -> None:
        if not rarely:
            self.world.cut(self.world.linked)

    @precondition(lambda self: self.world.lost)
    @rule(data=st.data())
    def notice(self, data: st.DataObject) -> None:
        self.world.notice(*data.draw(st.sampled_from(sorted(self.world.lost))))

    @rule(rarely=st.integers(0, 9))
    def dial(self, rarely: int) -> None:
        if not rarely or self.world.linked is None:
            self.world.dial()

    @rule(party=st.integers(0, 1), rarely=st.integers(0, 9))
    def crash(self, party: int, rarely: int) -> None:
        if not rarely:
            self.world.crash(party)

    @rule(seconds=st.sampled_from([0.25, 5.0, 20.0, 40.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule()
    def flow(self) -> None:
        self.world.flow()

    @invariant()
    def waiting_is_counted(self) -> None:
        for machine in self.world.machines:
            assert sum(machine._held.values()) == len(machine.waiting)
            assert len(machine.waiting) <= 4 * SETTINGS.queue

    def teardown(self) -> None:
        check_rest(self.world)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=300, stateful_step_count=25, deadline=None)


# ---------------------------------------------------------------------- single stories


@pytest.fixture
def world() -> World:
    """Two servers with lanes and kits, nothing on its way."""
    world = World()
    world.dial()
    world.heal()
    return world


def test_refusal_at_one_server_ends_the_other_half_at_once(world: World) -> None:
    for first in (0, 1):
        key = f"refused at {first}"
        failure = QueryFailure(429, "too fast", 7, "rate")
        world.post(1 - first, "a", key)
        world.perform(first, world.machines[first].refused(key, failure))
        world.flow()
        outcome = world.ended[1 - first][key]
        assert (outcome.status, outcome.retry_after) == (429, 7)
        late = f"refused before it came, at {first}"
        world.perform(first, world.machines[first].refused(late, failure))
        world.flow()
        world.post(1 - first, "a", late)
        world.flow()
        assert world.ended[1 - first][late].status == 429


def test_server_without_kits_turns_both_halves_away_at_once() -> None:
    world = World()
    world.dial()
    world.flow()
    world.post(1, "a", "hungry")
    world.post(0, "a", "hungry")
    world.flow()
    assert [world.ended[party]["hungry"].reason for party in (0, 1)] == ["material", "refused there"]


def test_query_waits_for_a_kit_that_is_on_its_way_and_for_no_other() -> None:
    world = World()
    world.dial()
    world.lane_up()
    world.perform(0, world.leader.supply(True))
    for party in (0, 1):
        world.post(party, "a", "patient")
    world.flow()
    assert "patient" not in world.ended[0]
    assert world.leader.supplied, "it is no reason to call the server unready"
    world.deal()
    world.flow()
    assert all(answered("patient", world.ended[party]["patient"]) for party in (0, 1))
    world.perform(0, world.leader.supply(False))
    for party in (1, 0):
        world.post(party, "a", "late")
        world.flow()
    assert [world.ended[party]["late"].reason for party in (0, 1)] == ["material", "refused there"]


def test_query_does_not_wait_for_a_kit_when_it_would_take_long() -> None:
    world = World()
    world.dial()
    world.lane_up()
    world.perform(0, world.leader.supply(True))
    slow = SETTINGS.timeout / 4
    world.leader.pace.ended(0.0, busy=True)  # others wait, and none of them has been served since
    world.now = slow - 0.1
    for party in (1, 0):
        world.post(party, "a", "in time")
        world.flow()
    assert "in time" not in world.ended[0]
    world.now = slow
    for party in (1, 0):
        world.post(party, "b", "hopeless")
        world.flow()
    refusal = world.ended[0]["hopeless"]
    assert (refusal.reason, refusal.retry_after) == ("material", 2 * slow)


def test_query_whose_lane_breaks_before_party_1_heard_of_it_ends_at_both(world: World) -> None:
    for party in (0, 1):
        world.post(party, "a", "unlucky")
    world.deliver(0)
    (lane,) = world.running[0]
    world.break_lane(lane)
    world.flow()
    assert [world.ended[party]["unlucky"].status for party in (0, 1)] == [502, 502]
    check_rest(world)


def test_lone_halves_of_two_clients_leave_room_for_a_third(world: World) -> None:
    for party in (0, 1):
        for client, number in itertools.product("ab", range(4)):
            world.post(party, client, f"{client} {number} lone at {party}")
        refused = [key for key, outcome in world.ended[party].items() if "lone" in key]
        assert 0 < len(refused) < 5, "the queue is full, but each has its share"
    for party in (0, 1):
        world.post(party, "c", "third")
    world.flow()
    assert all(answered("third", world.ended[party]["third"]) for party in (0, 1))


def test_retry_after_follows_the_real_pace(world: World) -> None:
    pace = Pace()
    for step in range(50):
        pace.ended(0.5 * step, busy=True)
    assert pace.interval(25.0) == pytest.approx(0.5, rel=0.1)
    assert pace.interval(29.5) == pytest.approx(5.0, rel=0.01), "nothing ended for five seconds"
    world.leader.pace = pace
    for number in range(5):
        world.post(0, "ab"[number % 2], f"wait {number}")
    assert world.leader.retry_after(25.0) == pytest.approx(3.0, rel=0.1)


def test_kits_that_cannot_be_prepared_are_not_burnt_one_after_another() -> None:
    world = World()
    for _ in range(40):
        world.deal()
    world.dial()
    for _ in range(8):
        world.tick(0.25)
        while world.boxes[0]:
            world.deliver(1)
        while world.boxes[1]:
            world.deliver(0)
        while world.preparing[0]:
            world.finish_preparing(0, good=False)
        while world.preparing[1]:
            world.finish_preparing(1)
    assert len(world.leader.stored) > 25


def ask_and_answer(world: World, key: str) -> None:
    """One query from its halves to its end; what it starts to prepare has not ended yet."""
    for party in (0, 1):
        world.post(party, "a", key)
    world.deliver(0)
    (lane,) = world.running[0]
    world.deliver_lane(lane)
    world.finish_query(lane)


def test_preparation_waits_for_quiet_moments(world: World) -> None:
    assert world.leader.ready == SETTINGS.ready == 3
    for number in range(2):
        ask_and_answer(world, f"{number}")
        assert not world.preparing[0], "enough is ready: nothing disturbs the next query"
    for party in (0, 1):
        world.post(party, "a", "last")
    world.deliver(0)
    assert world.leader.running
    assert len(world.preparing[0]) == 1, "nothing is left for the next query"
    world.tick(0.25)
    world.tick(0.25)
    assert len(world.preparing[0]) == 1, "more would disturb the one that runs"
    (lane,) = world.running[0]
    world.deliver_lane(lane)
    world.finish_query(lane)
    world.tick(0.25)
    assert len(world.preparing[0]) == 1, "another query may be on its way"
    world.tick(0.25)
    assert len(world.preparing[0]) == SETTINGS.ready


def test_a_reserve_is_prepared_between_queries_not_while_they_run() -> None:
    world = World()
    world.leader.settings = world.settings = dataclasses.replace(SETTINGS, ready=4)
    world.heal()
    assert world.leader.ready == 4
    for number in range(2):
        ask_and_answer(world, f"{number}")
    for party in (0, 1):
        world.post(party, "a", "third")
    world.deliver(0)
    assert world.leader.running
    assert not world.preparing[0], "one is ready for whoever comes next"
    (lane,) = world.running[0]
    world.deliver_lane(lane)
    world.finish_query(lane)
    assert len(world.preparing[0]) == 1, "while the client has its answer to read"


def test_stock_is_filled_up_in_quiet_moments(world: World) -> None:
    left = len(world.leader.stored) + SETTINGS.ready - 1 - (SETTINGS.ahead - SETTINGS.slack)
    assert left > 0
    for number in range(left + 1):
        assert world.leader.missing() == (1, 0), "queries come one after another, and use what memory held"
        for party in (0, 1):
            world.post(party, "a", f"{number}")
        world.flow()
    assert world.leader.missing() == (1, 1), "the others are fetched at once"
    world.tick(0.25)
    assert world.leader.missing() == (1, 1), "a query ran since the tick before"
    world.tick(0.25)
    assert world.leader.missing() == (1, SETTINGS.slack + SETTINGS.ready)


# ---------------------------------------------------------------------- several queries together


@pytest.fixture
def crowd() -> World:
    """Two servers that run up to four queries together; both lanes are busy, and queries of six clients wait."""
    world = World(batch=4)
    world.dial()
    world.heal()
    for number in range(2):
        for party in (0, 1):
            world.post(party, "first", f"first {number}")
    world.deliver(0)
    world.deliver(0)
    for _ in range(2):
        world.deal(size=4)
    for number, party in itertools.product(range(6), (0, 1)):
        world.post(party, "abcdef"[number], f"{number}")
    while any(world.boxes) or any(world.preparing):
        for party in (0, 1):
            while world.boxes[1 - party]:
                world.deliver(party)
            while world.preparing[party]:
                world.finish_preparing(party)
    return world


def together(world: World) -> list[tuple[str, ...]]:
    """The queries of every run so far that had several."""
    return [keys for keys in world.used[0].values() if len(keys) > 1]


def test_waiting_queries_of_different_clients_run_together_and_get_their_own_answers(crowd: World) -> None:
    assert crowd.leader.missing()[0] == 4, "a crowd wants kits for many, though no lane is free yet"
    crowd.flow()
    assert [len(keys) for keys in together(crowd)] == [4], "the other two run each alone"
    for number, party in itertools.product(range(6), (0, 1)):
        assert answered(str(number), crowd.ended[party][str(number)])
    for _ in range(200):
        crowd.tick(0.25)
    assert crowd.leader.missing()[0] == 1, "nobody came for a while"


def test_queries_that_fill_a_kit_wait_while_it_is_prepared() -> None:
    world = World(batch=4)
    world.dial()
    world.heal()
    world.deal(size=4)
    for number, party in itertools.product(range(8), (0, 1)):
        world.post(party, "abcdefgh"[number], f"{number}")
    while world.boxes[1]:
        world.deliver(0)
    assert 4 in [size_of(kit) for _, kit in world.preparing[0]]
    assert world.leader.ready, "one kit for a single query"
    lane, _ = world.running[0]
    world.deliver_lane(lane)
    world.finish_query(lane)
    assert len(world.running[0]) == 1, "which nobody of the six takes:"
    world.flow()
    assert len(together(world)) == 1, "four of them run together"
    assert all(answered(str(number), world.ended[0][str(number)]) for number in range(8))


def test_one_withdrawn_half_leaves_the_others_their_run(crowd: World) -> None:
    crowd.withdraw(1, "2")
    crowd.flow()
    assert not isinstance(crowd.ended[0]["2"], Answer)
    assert sum(answered(str(number), crowd.ended[0][str(number)]) for number in range(6)) == 5


def test_few_waiting_queries_do_not_spend_a_kit_for_many_unless_there_is_no_other() -> None:
    world = World(batch=4)
    world.dial()
    world.lane_up()
    world.leader._crowd = 1000
    for size in (4, 4, 1):
        world.deal(size=size)
    world.flow()
    for number in range(3):
        for party in (0, 1):
            world.post(party, "a", f"{number}")
        world.flow()
    assert [size_of(kit) for kit in world.used[0]] == [1, 4, 4]
    assert all(len(keys) == 1 for keys in world.used[0].values())


def test_kits_for_many_serve_one_where_nobody_makes_others() -> None:
    world = World(batch=4)
    world.dial()
    world.lane_up()
    for _ in range(2):
        world.deal(size=4)
    world.flow()
    assert not world.leader.ready, "they are for a crowd"
    world.perform(0, world.leader.supply(True))
    for party in (0, 1):
        world.post(party, "a", "patient")
    world.flow()
    assert not world.used[0], "another kit is on its way"
    world.perform(0, world.leader.supply(False))
    world.tick(0.25)
    world.flow()
    assert answered("patient", world.ended[0]["patient"])


def test_kits_for_what_the_line_will_use_next_are_fetched_first(crowd: World) -> None:
    assert crowd.leader.missing()[0] == 4, "six wait"
    crowd.flow()
    crowd.leader.stored.clear()
    assert crowd.leader.missing() == (1, SETTINGS.ready), "nobody waits: whoever comes next runs alone"
    crowd.leader.stored = {kit_id(bytes(8), 1, number.to_bytes(7, "big")).hex() for number in range(SETTINGS.ready)}
    assert crowd.leader.missing() == (4, SETTINGS.held // 4), "but a crowd may be back at any moment"


@pytest.mark.parametrize("wrong", [("asked", "lone"), ("asked", "asked"), ("never heard of",)])
def test_party_1_refuses_a_run_of_queries_that_are_not_all_here_or_too_many(world: World, wrong: Any) -> None:
    for party in (0, 1):
        world.post(party, "a", "asked")
    world.post(1, "b", "lone")
    world.deliver(0)
    (lane,) = world.running[0]
    _, kit = world.lanes[lane].popleft()
    todo = world.follower.asked(str(world.linked), lane, wrong, kit)
    assert not any(isinstance(command, commands.Run) for command in todo)
    assert any(isinstance(command, commands.CloseLane) for command in todo)
    assert kit not in world.follower._prepared
