"""Real faults under load: every accepted query ends in an answer or a clear error, and the service recovers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from autorep.errors import AutorepError, ProtocolError
from autorep.modes import Program
from autorep.service.client import Client
from autorep.service.local import LocalDeployment

OPTIONS = ("--timeout", "6", "--half-expiry", "1.5")


@pytest.fixture(scope="module")
def fragile(program: Program) -> Iterator[LocalDeployment]:
    """A deployment that the tests of this file may break, and must leave working."""
    with LocalDeployment(program, prepare=4, options=OPTIONS) as running:
        yield running


class Load:
    """Clients that ask all the time and check every answer."""

    def __init__(self, deployment: LocalDeployment, program: Program, clients: int = 3) -> None:
        self._images = np.random.default_rng(5).random((16, 1, 8, 8))
        self._expected = program.run(self._images, "fixed")
        self._deployment = deployment
        self._stop, self._lock = threading.Event(), threading.Lock()
        self.asked = self.answers = 0
        self.failures: list[str] = []
        self.wrong = 0
        self._pool = ThreadPoolExecutor(clients)
        self._work = [self._pool.submit(self._ask, i) for i in range(clients)]

    def _ask(self, number: int) -> None:
        with self._deployment.client(patience=0.0, timeout=20) as client:
            while not self._stop.is_set():
                number = (number + 1) % 16
                with self._lock:
                    self.asked += 1
                try:
                    logits = client.logits(self._images[number : number + 1])[0]
                except AutorepError as error:
                    self.failures.append(str(error))
                    time.sleep(0.05)
                    continue
                with self._lock:
                    self.answers += 1
                    self.wrong += int(np.abs(logits - self._expected[number]).max() > 1e-3)

    def wait_answers(self, count: int, seconds: float = 200.0) -> None:
        """Wait for so many further answers."""
        goal, deadline = self.answers + count, time.monotonic() + seconds
        while self.answers < goal:
            assert time.monotonic() < deadline, f"no recovery; last failures: {self.failures[-3:]}"
            time.sleep(0.05)

    def wait_failure(self, seconds: float = 100.0) -> None:
        """Wait until a query has failed."""
        deadline = time.monotonic() + seconds
        while not self.failures:
            assert time.monotonic() < deadline, f"{self.answers} of {self.asked} queries were answered, none failed"
            time.sleep(0.05)

    def __enter__(self) -> Load:
        self.wait_answers(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for work in self._work:
            work.result(100)
        self._pool.shutdown()
        assert self.wrong == 0, f"{self.wrong} of {self.answers} answers are not those of fixed point"
        for role in ("party0", "party1"):
            used = kits_used(self._deployment, role)
            assert len(used) == len(set(used)), f"{role} used a kit twice"


def kits_used(deployment: LocalDeployment, role: str) -> list[str]:
    """Ids of all kits a server ever ran a query with."""
    lines = deployment.log(role).read_text().splitlines()
    return [record["kit"] for record in map(json.loads, lines) if record["event"] == "running"]


@pytest.mark.parametrize("role", ["party0", "party1"])
def test_killed_server_comes_back(fragile: LocalDeployment, program: Program, role: str) -> None:
    with Load(fragile, program) as load:
        fragile.kill(role)
        load.wait_failure()
        fragile.start(role)
        load.wait_answers(10)
    assert all("https://127.0.0.1" in failure for failure in load.failures)


def test_killed_dealer_only_stops_the_supply(fragile: LocalDeployment, program: Program) -> None:
    with Load(fragile, program) as load:
        fragile.kill("dealer")
        time.sleep(0.5)
        fragile.start("dealer")
        load.wait_answers(80)  # more than was in stock: the new dealer deals under the same blinding
    adopted = [line for line in fragile.log("party0").read_text().splitlines() if "blinding adopted" in line]
    assert len(adopted) == 1


def test_dealer_that_lost_its_blinding_starts_the_pair_anew(program: Program) -> None:
    with LocalDeployment(program, prepare=4, options=OPTIONS) as deployment, Load(deployment, program) as load:
        deployment.kill("dealer")
        shutil.rmtree(deployment.folder / "dealer-state")
        deployment.start("dealer")
        load.wait_answers(40)
        for role in ("party0", "party1"):
            assert deployment.log(role).read_text().count("blinding adopted") == 2


CLIENT = """
import sys
import numpy as np
from autorep.service.client import Client
with Client(sys.argv[1:3], ca=sys.argv[3]) as client:
    while True:
        client.predict(np.zeros((4, 1, 8, 8)))
        print("answered", flush=True)
"""


def test_killed_client_leaves_no_trace(fragile: LocalDeployment, program: Program) -> None:
    command = [sys.executable, "-c", CLIENT, *fragile.urls, str(fragile.ca)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client, Load(fragile, program) as load:
        assert client.stdout is not None
        assert client.stdout.readline() == b"answered\n"
        client.kill()  # in the middle of a later query
        load.wait_answers(10)


def test_frozen_peer_is_given_up_and_found_again(fragile: LocalDeployment, program: Program) -> None:
    process = fragile.processes["party1"]
    with Load(fragile, program) as load:
        process.send_signal(signal.SIGSTOP)
        time.sleep(9)  # longer than the links' time-out
        load.wait_failure()
        process.send_signal(signal.SIGCONT)
        load.wait_answers(10)


def use_up(deployment: LocalDeployment) -> None:
    """Ask for as much as lies in stock: of the kits that come then, few find room in memory."""
    with deployment.client(patience=0.0, concurrency=16) as client:
        client.predict(np.zeros((32, 1, 8, 8)), errors="keep")
    time.sleep(0.5)


def wait_refused(deployment: LocalDeployment, role: str) -> None:
    """Wait until a disk did not take a kit: while nobody asks, more of them are kept than memory holds."""
    deadline = time.monotonic() + 150
    while "kit not stored" not in deployment.log(role).read_text():
        assert time.monotonic() < deadline, "no kit was refused though there is no room"
        time.sleep(0.05)


def test_full_disk_is_reported_and_survived(fragile: LocalDeployment, program: Program) -> None:
    (folder,) = (fragile.folder / "store1").glob("*/incoming")
    moved = folder.with_name("elsewhere")
    with Load(fragile, program, clients=1) as load:
        folder.rename(moved)  # writing fails from now on, as on a full disk
        load.wait_answers(60)  # memory has room for the kits that come meanwhile
    wait_refused(fragile, "party1")
    moved.rename(folder)
    with Load(fragile, program, clients=1) as load:
        load.wait_answers(60)


class Proxy:
    """Forwards connections to a port, until somebody cuts them all."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ends: list[socket.socket] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        self._cut(source)
        self._cut(sink)

    def _cut(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.cuts += 1
        ends, self._ends = self._ends, []
        for end in ends:
            self._cut(end)

    def close(self) -> None:
        self._listener.close()
        self.cut()


class BehindProxy(LocalDeployment):
    """Party 1 reaches party 0 through a proxy."""

    def __enter__(self) -> BehindProxy:
        self.proxy = Proxy(int(self._peer.rpartition(":")[2]))
        super().__enter__()
        return self

    def __exit__(self, *arguments: object) -> None:
        super().__exit__(*arguments)
        self.proxy.close()

    def _arguments(self, role: str) -> list[str]:
        own = super()._arguments(role)
        return [f"127.0.0.1:{self.proxy.port}" if role == "party1" and each == self._peer else each for each in own]


def test_cut_link_between_the_servers_heals(program: Program) -> None:
    with BehindProxy(program, prepare=4, options=OPTIONS) as deployment, Load(deployment, program) as load:
        while deployment.proxy.cuts < 3 or not load.failures:  # it takes a query on its way to notice a cut
            deployment.proxy.cut()
            load.wait_answers(10)


def mount(folder: Path) -> bool:
    """A tiny file system of its own at `folder`, where we may."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


def test_store_on_a_disk_that_is_really_full(program: Program, tmp_path: Path) -> None:
    if not mount(tmp_path / "store0"):
        pytest.skip("needs the right to mount a small file system")
    try:
        with LocalDeployment(program, prepare=2, options=OPTIONS, folder=tmp_path) as deployment:
            filler = tmp_path / "store0" / "filler"
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            with Load(deployment, program, clients=1) as load:
                load.wait_answers(60)  # memory has room for the kits that come meanwhile
            wait_refused(deployment, "party0")
            filler.unlink()
            with Load(deployment, program, clients=1) as load:
                load.wait_answers(60)
        assert "No space left" in deployment.log("party0").read_text()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "store0")], check=True)


def test_servers_stop_cleanly_on_a_signal(program: Program) -> None:
    with LocalDeployment(program, prepare=1) as deployment:
        with deployment.client() as client:
            client.predict(np.zeros((2, 1, 8, 8)))
        for role, process in deployment.processes.items():
            process.send_signal(signal.SIGINT if role == "party1" else signal.SIGTERM)
        codes = {role: process.wait(100) for role, process in deployment.processes.items()}
        assert codes == {"dealer": 0, "party0": 0, "party1": 0}
        for role in codes:
            assert '"stopped"' in deployment.log(role).read_text()


def test_missing_server_gives_the_client_a_clear_error(fragile: LocalDeployment) -> None:
    with (
        Client(["https://127.0.0.1:9", "https://127.0.0.1:9"], ca=fragile.ca) as client,
        pytest.raises(ProtocolError, match="check that the server runs"),
    ):
        client.predict(np.zeros((1, 1, 8, 8)))
