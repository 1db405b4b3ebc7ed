"""Real faults under load: every accepted query ends in an answer or a clear error, and the service recovers."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from autorep.errors import AutorepError, ProtocolError
from autorep.program.ir import Program
from autorep.service.client import Client
from autorep.service.local import LocalDeployment

OPTIONS = ("--timeout", "4", "--half-expiry", "1.5")


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
        self._stop = threading.Event()
        self.answers = 0
        self.failures: list[str] = []
        self.wrong = 0
        self._pool = ThreadPoolExecutor(clients)
        self._work = [self._pool.submit(self._ask, i) for i in range(clients)]

    def _ask(self, number: int) -> None:
        with self._deployment.client(patience=0.0, timeout=20) as client:
            while not self._stop.is_set():
                number = (number + 1) % 16
                try:
                    logits = client.logits(self._images[number : number + 1])[0]
                except AutorepError as error:
                    self.failures.append(str(error))
                    time.sleep(0.05)
                    continue
                self.answers += 1
                self.wrong += int(np.abs(logits - self._expected[number]).max() > 1e-3)

    def wait_answers(self, count: int, seconds: float = 40.0) -> None:
        """Wait for so many further answers."""
        goal, deadline = self.answers + count, time.monotonic() + seconds
        while self.answers < goal:
            assert time.monotonic() < deadline, f"no recovery; last failures: {self.failures[-3:]}"
            time.sleep(0.05)

    def __enter__(self) -> Load:
        self.wait_answers(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for work in self._work:
            work.result(60)
        self._pool.shutdown()
        assert self.wrong == 0


def taken_bundles(deployment: LocalDeployment, role: str) -> list[str]:
    """Ids of all bundles a server ever ran a query with."""
    lines = deployment.log(role).read_text().splitlines()
    return [record["bundle"] for record in map(json.loads, lines) if record["event"] == "running"]


@pytest.mark.parametrize("role", ["party0", "party1"])
def test_killed_server_comes_back(fragile: LocalDeployment, program: Program, role: str) -> None:
    with Load(fragile, program) as load:
        fragile.kill(role)
        time.sleep(0.5)
        fragile.start(role)
        load.wait_answers(10)
    assert load.failures
    assert all("https://127.0.0.1" in failure for failure in load.failures)


def test_killed_dealer_only_stops_the_supply(fragile: LocalDeployment, program: Program) -> None:
    with Load(fragile, program) as load:
        fragile.kill("dealer")
        time.sleep(0.5)
        fragile.start("dealer")
        load.wait_answers(80)  # more than was in stock: the new dealer deals for the same masks
    new_masks = [line for line in fragile.log("party0").read_text().splitlines() if "new model masks" in line]
    assert len(new_masks) == 1


def test_killed_client_leaves_no_trace(fragile: LocalDeployment, program: Program) -> None:
    pid = os.fork()
    if pid == 0:  # a client that is killed in the middle
        with fragile.client() as client:
            while True:
                client.predict(np.zeros((4, 1, 8, 8)))
    with Load(fragile, program) as load:
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        load.wait_answers(10)


def test_frozen_peer_is_given_up_and_found_again(fragile: LocalDeployment, program: Program) -> None:
    process = fragile.processes["party1"]
    with Load(fragile, program) as load:
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        process.send_signal(signal.SIGCONT)
        load.wait_answers(10)
    assert load.failures


def test_full_disk_is_reported_and_survived(fragile: LocalDeployment, program: Program) -> None:
    (folder,) = (fragile.folder / "store1").glob("*/incoming")
    moved = folder.with_name("elsewhere")
    with Load(fragile, program, clients=1) as load:
        folder.rename(moved)  # writing fails from now on, as on a full disk
        deadline = time.monotonic() + 30
        while "bundle not stored" not in fragile.log("party1").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        moved.rename(folder)
        load.wait_answers(60)


def test_no_bundle_was_ever_used_twice(fragile: LocalDeployment) -> None:
    for role in ("party0", "party1"):
        used = taken_bundles(fragile, role)
        assert len(used) > 50
        assert len(used) == len(set(used))


def test_servers_stop_cleanly_on_a_signal(program: Program) -> None:
    with LocalDeployment(program, prepare=1) as deployment:
        with deployment.client() as client:
            client.predict(np.zeros((2, 1, 8, 8)))
        for role, process in deployment.processes.items():
            process.send_signal(signal.SIGINT if role == "party1" else signal.SIGTERM)
        codes = {role: process.wait(15) for role, process in deployment.processes.items()}
        assert codes == {"dealer": 0, "party0": 0, "party1": 0}
        for role in codes:
            assert '"stopped"' in deployment.log(role).read_text()


def test_missing_server_gives_the_client_a_clear_error(fragile: LocalDeployment) -> None:
    with (
        Client(["https://127.0.0.1:9", "https://127.0.0.1:9"], ca=fragile.ca) as client,
        pytest.raises(ProtocolError, match="check that the server runs"),
    ):
        client.predict(np.zeros((1, 1, 8, 8)))
