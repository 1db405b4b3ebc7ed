"""Who may be in, who must leave, and a listener that outlives every error of `accept`."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.errors import AutorepError, ConfigError
from autorep.mpc.tls import client_context, make_keys, server_context
from autorep.mpc.transport_tcp import TcpTransport, connect
from autorep.service.door import Door, DoorSettings
from autorep.service.listener import Listener
from autorep.service.workers import Worker, repeat


class Connection:
    """Stands for an accepted socket."""

    def __init__(self) -> None:
        self.shut = False

    def shutdown(self, how: int) -> None:
        self.shut = True


class Scene:
    """A door with a clock of its own."""

    def __init__(self, **limits: Any) -> None:
        self.now, self.reasons = 0.0, []
        self.door = Door(DoorSettings(**limits), self.reasons.append, lambda: self.now)  # type: ignore[arg-type]
        self.connections: dict[tuple[str, int], Connection] = {}

    def enter(self, address: str, port: int) -> bool:
        connection = self.connections[address, port] = Connection()
        return self.door.enter((address, port), connection)  # type: ignore[arg-type]


def test_newcomer_takes_the_place_of_the_idlest() -> None:
    scene = Scene(connections=16, per_address=100)
    for port in range(16):
        scene.now = float(port)
        assert scene.enter("flood", port)
    scene.door.began(("flood", 0))
    assert scene.enter("client", 1)
    assert [port for port in range(16) if scene.connections["flood", port].shut] == [1]
    assert len(scene.door) == 16
    assert scene.reasons == ["full"]


def test_connections_that_work_are_never_shown_out() -> None:
    scene = Scene(connections=16, per_address=100)
    for port in range(16):
        scene.enter("a", port)
        scene.door.began(("a", port))
    assert not scene.enter("b", 1)
    scene.door.ended(("a", 3))
    assert scene.enter("b", 2)
    assert scene.connections["a", 3].shut


def test_one_address_cannot_take_all_the_room() -> None:
    scene = Scene(connections=64, per_address=4)
    for port in range(10):
        assert scene.enter("greedy", port)
    assert len(scene.door) == 4
    assert scene.enter("other", 1)
    assert set(scene.reasons) == {"address full"}


def test_slow_and_resting_connections_leave_in_time() -> None:
    scene = Scene(connections=64, per_address=64, request_seconds=10, rest_seconds=75)
    for port in range(3):
        scene.enter("a", port)
    scene.door.began(("a", 1))
    scene.door.ended(("a", 1))
    scene.door.began(("a", 2))
    scene.now = 11
    scene.door.sweep()
    assert [scene.connections["a", port].shut for port in range(3)] == [True, False, False]
    scene.now = 80
    scene.door.sweep()
    assert [scene.connections["a", port].shut for port in range(3)] == [True, True, False]
    assert scene.reasons == ["slow", "rest"]


def test_a_body_gets_its_own_time() -> None:
    scene = Scene(connections=64, per_address=64, request_seconds=10, body_seconds=35, rest_seconds=75)
    for port in range(2):
        scene.enter("a", port)
    scene.now = 9
    scene.door.headed(("a", 1))
    scene.now = 40
    scene.door.sweep()
    assert [scene.connections["a", port].shut for port in range(2)] == [True, False]
    scene.now = 45
    scene.door.sweep()
    assert scene.connections["a", 1].shut
    assert scene.reasons == ["slow", "slow"]


@given(st.lists(st.tuples(st.sampled_from(["enter", "left", "began", "ended"]), st.integers(0, 30)), max_size=120))
@settings(max_examples=150, deadline=None)
def test_counts_never_drift(steps: list[tuple[str, int]]) -> None:
    scene = Scene(connections=16, per_address=8)
    open_now: set[tuple[str, int]] = set()
    for what, port in steps:
        peer = ("ab"[port % 2], port)
        open_now = {each for each in open_now if not scene.connections[each].shut}
        if what == "enter" and peer not in open_now:
            if scene.enter(*peer):
                open_now.add(peer)
        elif what == "left":
            scene.door.left(peer)
            open_now.discard(peer)
        elif what != "enter":
            getattr(scene.door, what)(peer)
        open_now = {each for each in open_now if not scene.connections[each].shut}
        assert len(scene.door) == len(open_now) <= 16
        assert sum(scene.door._count.values()) == len(open_now)


def test_listening_socket_counts_real_connections() -> None:
    door = Door(DoorSettings(connections=16, per_address=2))

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        listening = door.listen(("127.0.0.1", 0))
        server = await asyncio.start_server(serve, sock=listening)
        port = listening.getsockname()[1]
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        first = await asyncio.wait_for(clients[0][0].read(), 60)  # shown out for the third
        assert first == b""
        assert len(door) == 2
        for _, writer in clients:
            writer.close()
        async with asyncio.timeout(60):
            while len(door):
                await asyncio.sleep(0.01)
        server.close()

    asyncio.run(scene())


def test_connections_do_not_hold_back_the_end_of_an_answer() -> None:
    """Small segments leave at once: a body must not wait for the client's acknowledgement of the headers."""
    with Door(DoorSettings()).listen(("127.0.0.1", 0)) as listening:
        listening.listen(1)
        with socket.create_connection(listening.getsockname(), 60):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_queries_that_wait_leave_room_for_those_who_watch() -> None:
    scene = Scene(connections=16, per_address=100)
    answers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answers.append(scope["method"])

    async def send(message: Any) -> None:
        answers.append(message.get("status", message.get("body")))

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    def ask(method: str) -> None:
        asyncio.run(scene.door.layer(app)({"type": "http", "method": method, "client": ("c", 1)}, receive, send))

    for port in range(12):
        scene.enter("flood", port)
        scene.door.began(("flood", port))
    scene.enter("c", 1)
    ask("POST")
    assert answers[0] == 503
    assert b"too many queries" in answers[1]
    assert scene.reasons == ["crowded"]
    ask("GET")
    assert answers[2:] == ["GET"]
    scene.door.ended(("flood", 0))
    ask("POST")
    assert answers[3:] == ["POST"]
    scene.door.left(("flood", 1))
    scene.door.ended(("flood", 2))
    assert scene.door._working == 9


def test_want_of_descriptors_refuses_newcomers_and_is_over_when_they_are_free() -> None:
    reasons: list[str] = []
    door = Door(DoorSettings(connections=64, per_address=64), reasons.append)
    listening = door.listen(("127.0.0.1", 0))
    listening.listen(64)
    listening.setblocking(False)
    address = listening.getsockname()
    idle = socket.create_connection(address)
    kept, _ = listening.accept()
    newcomers = [socket.create_connection(address) for _ in range(8)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(BlockingIOError):  # never EMFILE: all that wait were refused
            listening.accept()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for newcomer in newcomers:
        newcomer.settimeout(60)
        assert newcomer.recv(1) == b""
    assert set(reasons) == {"descriptors"}
    assert idle.recv(1) == b"", "the idle connection made room"
    with socket.create_connection(address):
        later, _ = listening.accept()
        later.close()
    for each in (idle, kept, *newcomers, listening):
        each.close()


def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"for clients at 127.0.0.1:{port}"):
            Door(DoorSettings()).listen(("127.0.0.1", port))


# ---------------------------------------------------------------------- links


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", {role: ["127.0.0.1"] for role in ("party0", "party1", "dealer")})
    return tmp_path / "keys"


class Poor:
    """A listening socket in a process that has no descriptor left for a while."""

    def __init__(self, inner: socket.socket, failures: int) -> None:
        self._inner, self.failures = inner, failures

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._inner.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_listener_waits_for_descriptors_and_survives_a_crashing_guest(keys: Path) -> None:
    served, crashes = [], []

    def serve(transport: TcpTransport) -> None:
        served.append(transport.peer)
        if len(served) == 1:
            raise ValueError("nobody expected this")

    listener = Listener(
        ("127.0.0.1", 0), server_context(keys / "party0"), {"party1"}, 60.0, serve, lambda: crashes.append(1)
    )
    poor = Poor(listener._socket, failures=3)
    listener._socket = poor  # type: ignore[assignment]
    listener.start()
    for expected in (1, 2):
        link = connect("127.0.0.1", listener.port, client_context(keys / "party1"), "party0", 60.0)
        with pytest.raises(AutorepError):
            link.receive("message")
        assert len(served) == expected
    assert len(crashes) == 1
    assert poor.failures == 0
    assert listener.worker.problem is None
    listener.close()


def test_strangers_cannot_keep_a_server_out(keys: Path) -> None:
    done = threading.Event()
    listener = Listener(
        ("127.0.0.1", 0), server_context(keys / "party0"), {"party1"}, 60.0, lambda transport: done.set()
    )
    listener.start()
    silent = []
    for _ in range(64):  # from another address than the server's
        stranger = socket.socket()
        stranger.bind(("127.0.0.9", 0))
        stranger.connect(("127.0.0.1", listener.port))
        silent.append(stranger)
    connect("127.0.0.1", listener.port, client_context(keys / "party1"), "party0", 60.0)
    assert done.wait(60)
    for stranger in silent:
        stranger.close()
    listener.close()


def test_a_flood_of_strangers_from_everywhere_does_not_keep_a_server_out(keys: Path) -> None:
    done = threading.Event()
    listener = Listener(
        ("127.0.0.1", 0), server_context(keys / "party0"), {"party1"}, 60.0, lambda transport: done.set()
    )
    listener.start()
    silent = []
    for number in range(200):  # more than may be in, so that every slot is taken
        stranger = socket.socket()
        stranger.bind((f"127.3.0.{number + 1}", 0))
        stranger.connect(("127.0.0.1", listener.port))
        silent.append(stranger)
    connect("127.0.0.1", listener.port, client_context(keys / "party1"), "party0", 60.0)
    assert done.wait(60)
    assert len(listener._strangers) <= 128
    silent[0].settimeout(60)
    assert silent[0].recv(1) == b"", "the oldest left"
    for stranger in silent:
        stranger.close()
    listener.close()


# ---------------------------------------------------------------------- workers


def test_worker_survives_what_nobody_expected_and_says_so() -> None:
    over, sixth, seen, crashes = threading.Event(), threading.Event(), [], []

    def attempt() -> None:
        seen.append(worker.problem)
        if len(seen) < 3:
            raise ZeroDivisionError("unexpected")
        if len(seen) == 6:
            sixth.set()
            over.wait(60)

    worker = Worker("test", attempt, over, lambda: crashes.append(1))
    worker.start()
    assert sixth.wait(60)
    assert len(crashes) == 2
    assert seen == [None, *2 * ["ZeroDivisionError: unexpected"], None, None, None]
    assert worker.problem is None
    over.set()
    worker.join(60)
    assert not worker.is_alive()


def test_what_is_repeated_on_the_loop_survives_its_errors() -> None:
    calls, crashes = [], []

    def action() -> None:
        calls.append(1)
        if len(calls) == 5:
            raise asyncio.CancelledError  # the only end there is
        raise ZeroDivisionError("unexpected")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(repeat("test", action, 0.01, lambda: crashes.append(1)), 60))
    assert (len(calls), len(crashes)) == (5, 4)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_worker_that_is_gone_is_ill() -> None:
    over = threading.Event()
    worker = Worker("test", lambda: (_ for _ in ()).throw(SystemExit), over)
    worker.start()
    worker.join(60)
    assert worker.problem == "it is gone"


def test_process_ends_well_while_its_threads_compute() -> None:
    code = """
import threading, time
import numpy as np
from autorep import _native
from autorep.service.workers import end_process

def work():
    out = np.zeros(1 << 14, np.uint64)
    while True:
        _native.prg(bytes(16), out, 20)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
print("done")
end_process()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
