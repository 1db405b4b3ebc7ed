"""`autorep serve`: one of two servers, or with --local the whole deployment on this machine."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autorep.cli.named import program_of
from autorep.errors import ConfigError
from autorep.settings import parse, require, warn


@dataclass(frozen=True)
class ServeLocal:
    """Serve a model on this machine: dealer and both servers as processes of their own, ended together.

    For trying things out: one machine that runs all roles can see everything. docs/deploy.md shows three machines.
    """

    local: str
    """What to serve: a name from `autorep zoo`, a saved model, a run directory, or a directory of `autorep compile`."""
    data_path: Path | None = None
    """Files of the data set to calibrate on, for a saved model that was not calibrated when it was trained."""
    port: int = 8440
    """Port of server 0; server 1 takes the next one."""
    lanes: int = 2
    """Queries in flight at the same time."""

    def run(self) -> int:
        from autorep.service.local import LocalDeployment

        require(0 < self.port < 65535, "port", self.port, "1 to 65534; the second server takes the next one")
        require(self.lanes >= 1, "lanes", self.lanes, "at least 1")
        for port in (self.port, self.port + 1):
            _must_be_free(port)
        program = program_of(self.local, self.data_path)
        warn("starting a dealer and two servers …")
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        with LocalDeployment(program, prepare=2, lanes=self.lanes, ports=(self.port, self.port + 1)) as deployment:
            first, second = deployment.urls
            print(f"{program.info['name']}: open {first} in a browser (its certificate is signed by {deployment.ca})")
            print(f"or: autorep predict PICTURE --servers {first} {second} --ca {deployment.ca}")
            print("Ctrl-C ends all three processes.", flush=True)
            while not stop.wait(0.5):
                deployment.check_running()
        return 0


def _must_be_free(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ConfigError(
            f"port {port}: {error.strerror}; the servers take two ports in a row: choose others with --port"
        ) from None


def main(prog: str, arguments: Sequence[str]) -> int:
    """One server, or all roles with --local."""
    if any(argument == "--local" or argument.startswith("--local=") for argument in arguments):
        return parse(ServeLocal, arguments, prog).run()
    from autorep.cli.serve import Serve

    if not arguments:
        raise ConfigError(f"{prog}: give --local NAME to serve a model on this machine, or see {prog} --help")
    return parse(Serve, arguments, prog).run()
