"""Two party processes of a benchmark, each with a control connection: started, asked, stopped.

A message is a JSON object and raw blobs, over a local socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from autorep.errors import ProtocolError
from autorep.mpc import tls
from autorep.mpc.transport_tcp import TcpTransport, accept, connect

TIMEOUT = 600.0


def send(connection: Connection, message: dict[str, Any], *blobs: Any) -> None:
    """One message; blobs are anything with a contiguous buffer."""
    connection.send_bytes(json.dumps({**message, "blobs": len(blobs)}).encode())
    for blob in blobs:
        connection.send_bytes(memoryview(blob).cast("B"))


def receive(connection: Connection) -> tuple[dict[str, Any], list[bytes]]:
    """The next message; an `error` that the other end reported is raised here."""
    try:
        message = json.loads(connection.recv_bytes())
        blobs = [connection.recv_bytes() for _ in range(message.pop("blobs"))]
    except EOFError:
        raise ProtocolError("a party process of the benchmark ended; its error is above") from None
    if "error" in message:
        raise ProtocolError(f"party process: {message['error']}")
    return message, blobs


def meet(control: Connection, party: int) -> tuple[socket.socket | None, int]:
    """Party 0's accepted connection, on a free port that it tells; party 1's port to connect to (`introduce`)."""
    if party == 1:
        return None, receive(control)[0]["port"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        send(control, {"port": listener.getsockname()[1]})
        return listener.accept()[0], 0


def linked(raw: socket.socket | None, port: int, keys: Path) -> TcpTransport:
    """The parties' link over what `meet` gave."""
    if raw is not None:
        return accept(raw, tls.server_context(keys / "party0"), {"party1"}, TIMEOUT)
    return connect("127.0.0.1", port, tls.client_context(keys / "party1"), "party0", TIMEOUT)


class Processes:
    """Context manager: two processes `python ARGUMENTS FD`, FD being the process's end of its control connection.

    Args:
        arguments: of the interpreter, without the FD.
        environment: variables to set beside the inherited ones.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.controls: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(2):
            ours, theirs = socket.socketpair()
            command = [sys.executable, *arguments, str(theirs.fileno())]
            with theirs:
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], env={**os.environ, **(environment or {})}
                )
            self._processes.append(process)
            self.controls.append(Connection(ours.detach()))

    def __enter__(self) -> Processes:
        return self

    def introduce(self) -> None:
        """Tell party 1 the port on which party 0 waits for it."""
        send(self.controls[1], receive(self.controls[0])[0])

    def send(self, messages: Sequence[dict[str, Any]], blobs: Sequence[Any] | None = None) -> None:
        """One message to each, with one blob each where given."""
        for party, control in enumerate(self.controls):
            send(control, messages[party], *([] if blobs is None else [blobs[party]]))

    def gather(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Both answers, and the first blob of each."""
        answers = [receive(control) for control in self.controls]
        return [message for message, _ in answers], [blobs[0] for _, blobs in answers if blobs]

    def __exit__(self, *_: object) -> None:
        """End both; one that does not answer is killed."""
        for control in self.controls:
            with contextlib.suppress(OSError):  # that process ended already
                send(control, {"do": "stop"})
            control.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
