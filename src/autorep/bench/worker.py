"""One party of a benchmark, in a process of its own: `python -m autorep.bench.worker FD`, FD a connected socket.

It never imports torch, links to the other party over TCP with TLS 1.3, and answers the benchmark's messages:

    {"do": "start", …}              load the program and its shares, connect, open the weights
    {"do": "make", …}               make kits with the other party, where no dealer does
    {"do": "prepare", "path": …}    turn a kit, a file or one of those made, into a prepared query
    {"do": "run"} + share           one online pass; answers with this party's share of the logits, then what it took
    {"do": "stop"}
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench import processes
from autorep.errors import AutorepError, ConfigError
from autorep.mpc import tls
from autorep.mpc.blinding import BlindedModel
from autorep.mpc.cost import LINKS
from autorep.mpc.party import Party
from autorep.mpc.transport import Ledger, Throttled, Transport, handshake
from autorep.mpc.transport_tcp import accept, connect
from autorep.mpc.two_party.model import Maker, TwoPartyModel
from autorep.program import files

TIMEOUT = 600.0


def memory_bytes(field: str) -> int:
    """VmRSS (memory held now) or VmHWM (the most ever held) of this process.

    `getrusage` would not do: its maximum includes the process that started this one.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise ConfigError(f"/proc/self/status has no {field}; memory can only be measured on Linux")


class Worker:
    """Answers one benchmark; `runtime` is the memory of Python and its libraries before anything is loaded."""

    def __init__(self, control: Connection) -> None:
        self._control, self._runtime = control, memory_bytes("VmRSS")
        self.kits: list[bytes] = []

    def serve(self) -> None:
        """Answer messages until told to stop."""
        while True:
            message, blobs = processes.receive(self._control)
            action = message.pop("do")
            if action == "stop":
                return
            if action == "start":
                self._start(**message)
            elif action == "make":
                self._make(**message)
            elif action == "prepare":
                self._prepare(Path(message["path"]))
            elif action == "run":
                self._run(blobs[0])

    def _start(
        self, party: int, folder: str, model_seed: str, blinding_id: str, comparison: str, preparation: str, link: str,
        cores: list[int], threads: int,
    ) -> None:  # fmt: skip
        os.sched_setaffinity(0, cores)
        _native.set_threads(threads)
        program = files.load_public(Path(folder) / "public")
        shares = files.load_party(Path(folder) / f"party{party}", program).shares
        self.party = Party(program, shares, party, comparison)  # type: ignore[arg-type]  # checked by the caller
        del shares  # set-up frees them one by one
        self.link = self._connect(party, Path(folder) / "keys")
        hello = {"party": party, "program": self.party.program_hash.hex(), "comparison": comparison}
        handshake(self.link, hello)
        started = time.perf_counter()
        seed, known_as = bytes.fromhex(model_seed), bytes.fromhex(blinding_id)
        if preparation == "dealer":
            self.party.setup(BlindedModel(program, party, self.link, seed, known_as))
        else:
            self._slow_down(link)  # the makers meet over the same link as the parties
            model = TwoPartyModel(program, party, preparation)
            self.party.setup(model)
            self.maker = Maker(model, self.link)
        _native.keep_freed_memory()
        seconds = time.perf_counter() - started
        once = self.link.ledger.total("offline")
        if preparation == "dealer":
            self._slow_down(link)
        processes.send(self._control, {"setup_seconds": seconds, "setup_bytes": once.sent, "simd": _native.simd()})

    def _slow_down(self, link: str) -> None:
        speed = LINKS[link]
        if speed.bytes_per_second is not None:
            self.link = Throttled(self.link, speed.bytes_per_second, speed.one_way_delay)

    def _connect(self, party: int, keys: Path) -> Transport:
        """Party 0 listens on a free port and tells it; the benchmark passes it on to party 1."""
        if party == 1:
            port = processes.receive(self._control)[0]["port"]
            return connect("127.0.0.1", port, tls.client_context(keys / "party1"), "party0", TIMEOUT)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            processes.send(self._control, {"port": listener.getsockname()[1]})
            raw, _ = listener.accept()
        return accept(raw, tls.server_context(keys / "party0"), {"party1"}, TIMEOUT)

    def _make(self, count: int, batch: int) -> None:
        """Kits made with the other party, kept in memory."""
        self.link.phase, self.link.ledger = "offline", Ledger()
        started, cpu = time.perf_counter(), time.process_time()
        self.kits = [kit for _, kit in self.maker.make(count, batch)]
        seconds, busy = time.perf_counter() - started, time.process_time() - cpu
        sent = self.link.ledger.total("offline").sent
        self.link.phase = "online"
        sizes = sum(len(kit) for kit in self.kits)
        parts = {name: asdict(spent) for name, spent in self.maker.account.parts.items()}
        spent = {"seconds": seconds, "cpu_seconds": busy, "sent": sent, "kit_bytes": sizes}
        processes.send(self._control, {"total": spent, **parts})

    def _prepare(self, path: Path) -> None:
        """A dealer's kit is mapped, not read, and its name removed, as the store does."""
        kit: bytes | memoryview
        if self.kits:
            kit = self.kits.pop()
        else:
            with path.open("rb") as file:
                kit = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            path.unlink()
        started, cpu = time.perf_counter(), time.process_time()
        self.query = self.party.prepare(self.party.source(kit))
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        processes.send(self._control, spent)

    def _run(self, share: bytes) -> None:
        self.link.ledger = Ledger()
        query = self.query
        del self.query  # so that its kit goes before the next one comes
        shape = (query.batch, *self.party.program.input.shape)
        started, cpu = time.perf_counter(), time.process_time()
        answer = self.party.run(self.link, query, np.frombuffer(share, np.uint64).reshape(shape))
        seconds, busy = time.perf_counter() - started, time.process_time() - cpu
        processes.send(self._control, {}, np.ascontiguousarray(answer))
        total = self.link.ledger.total("online")
        moved = {label: [e.sent, e.rounds, e.seconds] for label, e in self.link.ledger.layers("online").items()}
        result: dict[str, Any] = {
            "seconds": seconds,
            "cpu_seconds": busy,
            "exchange_cpu_seconds": total.cpu_seconds,
            "rounds": total.rounds,
            "bytes": total.sent,
            "operations": query.seconds,
            "exchanges": moved,
            "peak_bytes": memory_bytes("VmHWM"),
            "runtime_bytes": self._runtime,
        }
        processes.send(self._control, result)


def main() -> int:
    control = Connection(int(sys.argv[1]))
    try:
        Worker(control).serve()
    except (AutorepError, OSError) as error:
        processes.send(control, {"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
