"""A server's supply without a dealer: a process beside it that makes kits with the other server's, for all programs.

`making_process` does the work and talks to the other server; here is what the server does for it: start it and start it
again, say how many kits are wanted, and put those it made into the stores.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from autorep.errors import ProtocolError
from autorep.service.logs import crash, event
from autorep.service.prepare_together import AT_ONCE
from autorep.service.session import Session
from autorep.service.workers import Worker

_PATIENCE = 4  # a step of making takes longer than one of a query: so many times its time-out may pass
_END_SECONDS = 2.0


@dataclass(frozen=True)
class MakingSettings:
    """Who makes kits with whom.

    Attributes:
        preparation: "two-party" or "ot".
        address: where party 0's process waits for party 1's.
        keys: directory of this party's certificate.
        timeout: of the server's other links.
    """

    party: int
    preparation: str
    address: tuple[str, int]
    keys: Path
    timeout: float


def wish(stored: int, ready: int, ahead: int) -> int:
    """Kits to make now, `stored` being in the store, `ready` prepared for queries, and `ahead` to be kept in the store.

    Several at once cost less each, so a store that is nearly full waits until a whole batch is missing; where there is
    nothing at all, the first kit is made alone, since somebody may wait for it.
    """
    missing = max(0, ahead - stored)
    if not stored + ready:
        return min(missing, 1)
    return min(missing, AT_ONCE) if missing >= AT_ONCE or stored < AT_ONCE else 0


class Making:
    """Keeps the sessions of one server supplied. `crashed` counts errors nobody expected."""

    def __init__(self, settings: MakingSettings, crashed: Callable[[], None] = lambda: None) -> None:
        self._settings, self._crashed = settings, crashed
        self._sessions: dict[str, tuple[Session, Path]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._ended_on_purpose = False
        self.worker = Worker("autorep-making", self._live, self._over, crashed)

    def add(self, session: Session, bundle: Path) -> None:
        """Supply a session too, from the next start of the process on."""
        self._sessions[session.hash] = session, bundle
        session.making("not connected yet")

    def remove(self, program: str) -> None:
        """Supply a session no longer, from the next start of the process on."""
        self._sessions.pop(program, None)

    def restart(self) -> None:
        """End the process; the worker starts it anew, with the programs and certificates there are now."""
        self._ended_on_purpose = True
        self._end_process()

    def stop(self) -> None:
        """End it for good."""
        self._over.set()
        self._end_process()

    def _end_process(self) -> None:
        if (process := self._process) is not None:
            process.kill()  # it holds nothing that its end at any moment could spoil

    def _live(self) -> None:
        """One process, from its start to its end."""
        self._ended_on_purpose = False
        lines: dict[str, Connection] = {}
        programs, passed = [], []
        for name, (_, bundle) in self._sessions.items():
            ours, theirs = socket.socketpair()
            lines[name] = Connection(ours.detach())
            passed.append(theirs)
            programs.append({"program": name, "bundle": str(bundle), "line": theirs.fileno()})
        settings = self._settings
        task = {
            "party": settings.party,
            "preparation": settings.preparation,
            "address": settings.address,
            "keys": str(settings.keys),
            "timeout": _PATIENCE * settings.timeout,
            "programs": programs,
        }
        command = [sys.executable, "-m", "autorep.service.making_process"]
        descriptors = [end.fileno() for end in passed]
        process = self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=descriptors)
        for end in passed:
            end.close()
        threads = [
            threading.Thread(target=self._serve, args=(self._sessions[name][0], line, process), daemon=True)
            for name, line in lines.items()
        ]
        try:
            self._instruct(process, task)
            for thread in threads:
                thread.start()
            code = process.wait()
        finally:
            self._process = None
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for thread in threads:
            thread.join(_END_SECONDS)
        if not self._ended_on_purpose and not self._over.is_set():
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise ProtocolError(f"the process that makes kits ended ({how}); it is started anew")

    def _instruct(self, process: subprocess.Popen[bytes], task: dict[str, Any]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it ended already: `wait` says how
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        if self._over.is_set():  # told to stop while it was being started
            process.kill()

    # ------------------------------------------------------------------ one program's line to the process

    def _serve(self, session: Session, line: Connection, process: subprocess.Popen[bytes]) -> None:
        try:
            while True:
                self._answer(session, line, json.loads(line.recv_bytes()))
        except (EOFError, OSError):
            pass  # the process ended
        except Exception as error:  # this thread must not end in silence: the process is started anew
            crash("autorep-making", error, program=session.hash)
            self._crashed()
            process.kill()
        finally:
            line.close()
            session.making("the process that makes kits ended")

    def _answer(self, session: Session, line: Connection, message: dict[str, Any]) -> None:
        match message:
            case {"wanted": True}:
                line.send_bytes(json.dumps({"make": self._wish(session)}).encode())
            case {"kit": str(name)}:
                stored = session.put(name, iter([memoryview(line.recv_bytes())]))
                line.send_bytes(json.dumps({"stored": stored}).encode())
            case {"made": int(count), "seconds": seconds, "cpu_seconds": busy, "sent": sent}:
                session.metrics.made(count, seconds, busy, sent)
                event("kits made", program=session.hash, kits=count, seconds=round(seconds, 3), sent=sent)
            case {"idle": True}:
                session.post(session.supply_idle)
            case {"connected": True}:
                session.making(None)
                session.post(session.supply_idle)  # what a batch that was cut off left in one store can go
                event("making connected", program=session.hash)
            case {"failed": str(text)}:
                session.metrics.making_failed()
                if message.get("unexpected"):
                    self._crashed()
                session.making(text)

    def _wish(self, session: Session) -> int:
        """Wait until kits are wanted, for a while; 0 keeps the link alive."""
        until = time.monotonic() + self._settings.timeout / 4
        while not session.stopping.is_set():
            session.wanted.clear()
            count = wish(len(session.machine.stored), session.machine.ready, session.settings.ahead)
            left = until - time.monotonic()
            if count or left <= 0:
                return count
            session.wanted.wait(left)
        return 0
