"""Two party processes of a benchmark, each with a control connection: started, asked, stopped."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from autorep.bench import channel


class Processes:
    """Two processes `python ARGUMENTS FD`, FD being the process's end of its control connection.

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

    def send(self, messages: Sequence[dict[str, Any]], blobs: Sequence[Any] | None = None) -> None:
        """One message to each, with one blob each where given."""
        for party, control in enumerate(self.controls):
            channel.send(control, messages[party], *([] if blobs is None else [blobs[party]]))

    def gather(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Both answers, and the first blob of each."""
        answers = [channel.receive(control) for control in self.controls]
        return [message for message, _ in answers], [blobs[0] for _, blobs in answers if blobs]

    def stop(self) -> None:
        """End both; one that does not answer is killed."""
        for control in self.controls:
            with contextlib.suppress(OSError):  # that process ended already
                channel.send(control, {"do": "stop"})
            control.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
