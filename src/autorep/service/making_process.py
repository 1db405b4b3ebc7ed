"""The process beside a server that makes kits together with the other server's: at low priority, memory of its own.

`python -m autorep.service.making_process`, started and watched by `making.Making`. Its task comes as one line of JSON
on standard input, which then stays open: when it closes, the server is gone and so is this process. For every program
there is a line to the server (a socket that was passed on), and a TLS link to the other server's process: party 0 waits
at an address of its own, party 1 dials, and dials again.

On a link, after keys and base transfers (`Maker`), party 0 speaks:

    0 → 1   {"make": n}             n = 0: nothing is wanted now, and a sign of life
            the protocol of `Maker.make`, in both directions
    0 → 1   {"stored": [ids]}       party 0 has put these into its store
    1 → 0   {"stored": [ids]}       and party 1 these: what lies in its store lay in party 0's before

Whatever ends this process or the link, a kit is then in both stores, or in party 0's alone, where the servers find it
and delete it, or nowhere. Nothing of a batch that was cut off is used again: keys, transfers and ids are new on every
link.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from autorep import _native
from autorep.errors import AutorepError, ProtocolError
from autorep.mpc.tls import client_context, server_context
from autorep.mpc.transport import Ledger, Transport
from autorep.mpc.transport_tcp import TcpTransport, connect
from autorep.mpc.two_party.model import Maker, TwoPartyModel
from autorep.service.listener import Listener
from autorep.service.logs import setup_logging, trouble
from autorep.service.messages import receive_message, send_message
from autorep.service.prepare_together import AT_ONCE, load_model
from autorep.service.workers import Worker

_NICENESS = 10
_LONGEST_PAUSE = 60.0


class Line:
    """To a program's session in the server: JSON messages, some with a kit behind them."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)
        self._lock = threading.Lock()

    def tell(self, message: dict[str, Any]) -> None:
        """Say something that wants no answer."""
        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())

    def ask(self, message: dict[str, Any], kit: bytes | None = None) -> dict[str, Any]:
        """Say something and wait for the answer."""
        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())
            if kit is not None:
                self._connection.send_bytes(kit)
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
            return answer


class Workshop:
    """One program: makes kits over one link at a time."""

    def __init__(self, bundle: Path, party: int, preparation: str, line: Line) -> None:
        self._bundle, self._party, self._preparation, self._line = bundle, party, preparation, line
        self._busy = threading.Lock()
        self._link: Transport | None = None

    @cached_property
    def _model(self) -> TwoPartyModel:
        return load_model(self._bundle, self._party, self._preparation)

    def use(self, link: Transport) -> None:
        """Make kits over a link until it breaks; a link that is still in use is given up for it."""
        if self._link is not None:
            self._link.interrupt()
        with self._busy, self._reported(link):
            self._link = link
            maker = Maker(self._model, link)
            _native.keep_freed_memory()
            self._line.tell({"connected": True})
            if self._party == 0:
                self._lead(maker, link)
            else:
                self._follow(maker, link)

    @contextlib.contextmanager
    def _reported(self, link: Transport) -> Iterator[None]:
        """The server hears of every failure, and so does the other process."""
        try:
            yield
        except Exception as error:  # reported, then raised as it was
            link.abort(f"party {self._party} stopped making kits: {type(error).__name__}")
            self._line.tell({"failed": str(error), "unexpected": not isinstance(error, AutorepError)})
            raise
        finally:
            self._link = None
            link.close()

    def _lead(self, maker: Maker, link: Transport) -> None:
        pause = 1.0
        while True:
            count = int(self._line.ask({"wanted": True})["make"])
            send_message(link, {"make": count})
            if not count:
                continue
            kits = self._make(maker, link, count)
            stored = self._store(kits, list(kits))
            send_message(link, {"stored": stored})
            if len(_ids(receive_message(link))) == count:
                pause = 1.0
            else:  # a disk that is full at either server does not empty itself at once
                time.sleep(min(pause, link.timeout / 4))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _follow(self, maker: Maker, link: Transport) -> None:
        while True:
            count = receive_message(link).get("make")
            if not isinstance(count, int) or not 0 <= count <= AT_ONCE:
                link.abort(f"party 0 wants to make {count!r} kits, not 0 to {AT_ONCE}")
                raise ProtocolError(f"party 0 wants to make {count!r} kits, not 0 to {AT_ONCE}; run the same release")
            if not count:
                self._line.tell({"idle": True})
                continue
            kits = self._make(maker, link, count)
            send_message(link, {"stored": self._store(kits, _ids(receive_message(link)))})

    def _make(self, maker: Maker, link: Transport, count: int) -> dict[str, bytes]:
        """Kits by their ids; the server is told what they took."""
        link.ledger = Ledger()
        started, busy = time.perf_counter(), time.process_time()
        kits = {kit_id.hex(): kit for kit_id, kit in maker.make(count)}
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - busy}
        self._line.tell({"made": count, "sent": link.ledger.total("offline").sent, **spent})
        return kits

    def _store(self, kits: dict[str, bytes], names: list[str]) -> list[str]:
        """Hand kits to the server; those it has put into its store."""
        return [name for name in names if name in kits and self._line.ask({"kit": name}, kits[name])["stored"]]


def _ids(message: dict[str, Any]) -> list[str]:
    found = message.get("stored")
    if not isinstance(found, list):
        raise ProtocolError("the other server's message names no stored kits; both must run the same release")
    return [str(each) for each in found]


class MakingProcess:
    """All programs of one server."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._party, self._timeout, self._keys = int(task["party"]), float(task["timeout"]), Path(task["keys"])
        self._host, self._port = task["address"]
        self._programs = {
            str(each["program"]): Workshop(
                Path(each["bundle"]), self._party, task["preparation"], Line(int(each["line"]))
            )
            for each in task["programs"]
        }

    def run(self) -> None:
        """For ever."""
        if self._party == 0:
            address, context = (self._host, self._port), server_context(self._keys)
            listener = Listener(address, context, {"party1"}, self._timeout, self._serve)
            listener.start()
            listener.worker.join()
        else:
            over, context = threading.Event(), client_context(self._keys)
            workers = [
                Worker("autorep-making", partial(self._dial, name, context), over, program=name)
                for name in self._programs
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def _serve(self, link: TcpTransport) -> None:
        """Party 0: a connection says which program it is for."""
        greeting = receive_message(link)
        workshop = self._programs.get(str(greeting.get("program")))
        if workshop is None:
            link.abort(f"party 0 makes no kits for program {str(greeting.get('program'))[:16]}…")
        elif greeting.get("kind") == "probe":
            send_message(link, {"state": "makes kits for this program"})
        else:
            workshop.use(link)

    def _dial(self, name: str, context: Any) -> None:
        link = connect(self._host, self._port, context, "party0", self._timeout)
        send_message(link, {"kind": "make", "program": name})
        self._programs[name].use(link)


def _end_with_the_server() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> int:
    os.nice(_NICENESS)
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    setup_logging(f"party{task['party']} making kits")
    _native.set_threads(1)
    try:
        MakingProcess(task).run()
    except AutorepError as error:
        trouble("kits cannot be made", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
