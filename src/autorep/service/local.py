"""A whole deployment on this machine: two servers, and a dealer if they have one, as processes over TLS on loopback.

>>> with LocalDeployment(program) as deployment, deployment.client() as client:     # doctest: +SKIP
...     client.predict(images)
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import httpx

from autorep.errors import ProtocolError
from autorep.mpc.tls import make_keys
from autorep.mpc.two_party.names import PreparationName, with_owners_word
from autorep.program.files import load, split
from autorep.program.ir import Program
from autorep.service.client import Client
from autorep.service.web import authority

_STOP_SECONDS = 15.0


class LocalDeployment:
    """Context manager that starts everything and ends it, by process id.

    Args:
        program: the model owner's Program, or the directory it was saved to.
        prepare: kits to have on disk before the deployment counts as ready.
        lanes: queries in flight at the same time.
        options: further flags of `autorep serve`, the same for both servers.
        preparation: "dealer", or how the two servers make kits without one.
        folder: where keys, stores and logs go; a temporary directory unless given.
        ports: of server 0 and server 1; free ones unless given.
        patience: seconds it may take until the deployment is ready.
    """

    def __init__(
        self,
        program: Program | str | Path,
        prepare: int = 8,
        lanes: int = 2,
        options: tuple[str, ...] = (),
        preparation: PreparationName = "dealer",
        folder: Path | None = None,
        ports: tuple[int, int] | None = None,
        patience: float = 240.0,
    ) -> None:
        self._program = program if isinstance(program, Program) else load(program)
        self._preparation = preparation
        if preparation != "dealer":
            self._program = with_owners_word(self._program)
        self._prepare, self._lanes, self._options, self._patience = prepare, lanes, options, patience
        self._temporary = tempfile.TemporaryDirectory(prefix="autorep-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self._held = hold_ports(4)
        free = [held.getsockname()[1] for held in self._held]
        self.urls = tuple(f"https://127.0.0.1:{port}" for port in ports or free[:2])
        self._peer, self._supply = (f"127.0.0.1:{port}" for port in free[2:])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> LocalDeployment:
        make_keys(self.folder / "keys", {role: ["127.0.0.1", "localhost"] for role in ("party0", "party1", "dealer")})
        split(self._program, self.folder / "bundle")
        try:
            for role in ("dealer", "party0", "party1")[self._preparation != "dealer" :]:
                self.start(role)
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client(self, **options: object) -> Client:
        """A client of this deployment."""
        return Client(self.urls, ca=self.ca, **options)

    @property
    def ca(self) -> Path:
        """The authority that signed the servers' certificates."""
        return self.folder / "keys" / "client" / "ca.pem"

    def log(self, role: str) -> Path:
        """Where a process writes its log."""
        return self.folder / f"{role}.log"

    def start(self, role: str) -> None:
        """Start one process; also after it was killed."""
        log = open(self.log(role), "ab")  # noqa: SIM115  # the process outlives this call
        self._logs.append(log)
        command = [sys.executable, "-m", "autorep.cli.main", *self._arguments(role)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.processes[role] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def kill(self, role: str) -> None:
        """End one process at once, as a crash would."""
        self.processes[role].kill()
        self.processes[role].wait()

    def stop(self) -> None:
        """Ask every process to stop, and make it if it does not."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()
        for held in self._held:
            held.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def wait_ready(self, seconds: float | None = None) -> None:
        """Wait until both servers would answer a query and hold the kits asked for."""
        seconds = self._patience if seconds is None else seconds
        deadline = time.monotonic() + seconds
        state = "nothing answered yet"
        with httpx.Client(verify=authority(self.ca), timeout=5) as web:
            while time.monotonic() < deadline:
                self.check_running()
                try:
                    answers = [web.get(f"{url}/readyz") for url in self.urls]
                    state = "; ".join(answer.text for answer in answers)
                    if all(answer.status_code == 200 for answer in answers) and _stored(answers) >= self._prepare:
                        return
                except httpx.HTTPError as error:
                    state = str(error) or type(error).__name__
                time.sleep(0.05)
        raise ProtocolError(f"the local deployment was not ready within {seconds:g} s: {state}")

    def check_running(self) -> None:
        """Raise when one of the processes has ended by itself, with the end of its log."""
        for role, process in self.processes.items():
            if process.poll() is not None:
                raise ProtocolError(f"{role} stopped (exit {process.returncode}): {self._tail(role)}")

    def _tail(self, role: str) -> str:
        lines = self.log(role).read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-5:])

    def _arguments(self, role: str) -> list[str]:
        keys = str(self.folder / "keys" / role)
        if role == "dealer":
            return ["dealer", "--keys", keys, "--listen", self._supply, "--state", str(self.folder / "dealer-state")]
        index, made = int(role[-1]), self._preparation != "dealer"
        supply = ["--preparation", self._preparation, "--making"] if made else ["--dealer"]
        return [
            "serve", "--party", str(index), "--bundle", str(self.folder / "bundle"), "--keys", keys,
            "--store", str(self.folder / f"store{index}"), "--listen", self.urls[index].removeprefix("https://"),
            "--peer", self._peer, *supply, self._supply, "--open", "--lanes", str(self._lanes),
            "--ahead", str(max(32, self._prepare)), "--urls", *self.urls, *self._options,
        ]  # fmt: skip


def _stored(readiness: list[httpx.Response]) -> int:
    """Kits in the fuller program's store, at the server that has fewer."""
    return min(max(program["stored"] for program in answer.json()["programs"].values()) for answer in readiness)


def hold_ports(count: int) -> list[socket.socket]:
    """Sockets that hold a free port each, below those the system gives to outgoing connections.

    While one is open, nobody finds its port free but who asks for this very port, as a server of ours does, also when
    it is started anew: a port that is bound, though nobody listens, may be bound again where both allow it.
    """
    held: list[socket.socket] = []
    while len(held) < count:
        candidate = socket.socket()
        try:
            candidate.bind(("127.0.0.1", 20_000 + secrets.randbelow(12_000)))
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: it must be free of others
            held.append(candidate)
        except OSError:  # taken
            candidate.close()
    return held
