"""A session hears of events from many threads, and its machine of one at a time; clients hear on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autorep.mpc.kit import kit_id
from autorep.mpc.transport import Entry
from autorep.program.files import program_hash
from autorep.program.ir import Program
from autorep.service.blinding import Blinding
from autorep.service.leader_links import LeaderSession
from autorep.service.machine import Command, End, Tell
from autorep.service.metrics import Metrics
from autorep.service.queries import Answer, QueryFailure, SessionSettings

ANSWER = Answer(np.zeros((1, 10), np.uint64), 0.01, Entry(), 1)


@pytest.fixture
def session(program: Program, tmp_path: Path) -> Iterator[LeaderSession]:
    folder = tmp_path / "store" / "program"
    session = LeaderSession(program, program_hash(program), dict, folder, SessionSettings(), Metrics())
    session.machine.problems.clear()
    session.machine._flows = True
    yield session
    session.stopping.set()
    session.store.close()


def in_thread(function: Any, *arguments: Any) -> None:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_the_machine_hears_of_one_event_at_a_time_and_its_words_leave_in_order(
    session: LeaderSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    state = {"busy": False, "number": 0}
    monkeypatch.setattr(session, "tell", lambda message: told.append(message["number"]))

    def event() -> list[Command]:
        assert not state["busy"], "two events at once"
        state["busy"] = True
        threading.Event().wait(0.0001)
        state["number"] += 1
        state["busy"] = False
        return [Tell({"number": state["number"]})]

    def report() -> None:
        for _ in range(25):
            session.happen(event)

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert told == list(range(1, 201))


def test_an_event_that_fails_ends_the_epoch_and_not_the_thread(session: LeaderSession) -> None:
    session.machine.epoch = "e"

    def event() -> list[Command]:
        raise RuntimeError("a mistake")

    in_thread(session.happen, event)
    assert session.machine.epoch is None
    assert "an internal error" in session.machine.problems["peer"]


def test_a_kit_is_known_before_its_supplier_hears_that_it_is_stored(
    session: LeaderSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, told = kit_id(bytes(8), 1, bytes(7)).hex(), []
    monkeypatch.setattr(session, "kit_bytes", lambda kit: 4)
    monkeypatch.setattr(session.store, "incoming", lambda *_: contextlib.nullcontext(io.BytesIO()))
    monkeypatch.setattr(session, "tell", told.append)
    monkeypatch.setattr(session, "party", object())
    session.happen(session.machine.opened, "e", ())
    session.happen(session.machine.connected, "e")
    assert session.put(kit, iter([memoryview(b"kits")]))
    session.happen(session.machine.noted, 0.0, "e", {"stored": [kit]})  # party 1's half came at once
    assert kit in session.machine._stock.both or kit in session.machine._stock.progress
    assert not any("discard" in message for message in told)


def test_nobody_waits_while_the_store_is_looked_through_and_what_comes_meanwhile_is_known(
    session: LeaderSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, early, late = (kit_id(bytes(8), 1, bytes([number] * 7)) for number in range(3))

    def slow_look() -> list[bytes]:
        in_thread(session.happen, session.machine.put, [late.hex()])
        return [early]

    session.blinding = Blinding("b", b"")
    session.machine.stored = {gone.hex()}
    monkeypatch.setattr(session.store, "ids", slow_look)
    session.begin_epoch("e", session.blinding, None)
    assert session.machine.stored == {early.hex(), late.hex()}


@pytest.mark.parametrize("outcome", [ANSWER, QueryFailure(502, "broken", 1)])
@pytest.mark.parametrize("on_the_loop", [False, True])
def test_a_query_that_ends_in_a_lane_is_answered_on_the_loop(
    session: LeaderSession, outcome: Any, on_the_loop: bool
) -> None:
    async def scene() -> None:
        session.start(asyncio.get_running_loop())
        (query,) = session.submit("client", 32 * "a", [np.zeros((1, 1, 8, 8), np.uint64)])
        seen: list[int] = []
        query.add_done_callback(lambda _: seen.append(threading.get_ident()))
        end: list[Command] = [End(f"client:{32 * 'a'}", outcome)]
        if on_the_loop:
            session.happen(lambda: end)
        else:
            await asyncio.to_thread(session.happen, lambda: end)
        (found,) = await asyncio.gather(query, return_exceptions=True)
        assert found is outcome
        assert seen == [threading.get_ident()]
        await asyncio.sleep(0.01)
        status = "200" if outcome is ANSWER else "502"
        name, labels = "autorep_queries_total", {"program": session.hash[:16], "status": status}
        assert session.metrics._metrics.registry.get_sample_value(name, labels) == 1, "counted after it was answered"
        session.stop()

    asyncio.run(scene())


def test_a_query_that_nobody_waits_for_is_withdrawn(session: LeaderSession) -> None:
    async def scene() -> None:
        session.start(asyncio.get_running_loop())
        first, second = session.submit("client", 32 * "b", 2 * [np.zeros((1, 1, 8, 8), np.uint64)])
        assert len(session.machine.waiting) == 2
        first.cancel()
        await asyncio.sleep(0.01)
        assert list(session.machine.waiting) == [f"client:{32 * 'b'}.1"]
        with pytest.raises(QueryFailure, match="used before"):
            session.submit("client", 32 * "b", 2 * [np.zeros((1, 1, 8, 8), np.uint64)])
        session.stop()
        with pytest.raises(QueryFailure, match="stopping"):
            await second

    asyncio.run(scene())
