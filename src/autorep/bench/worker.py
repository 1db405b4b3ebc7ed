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
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench import processes
from autorep.errors import AutorepError, ConfigError
from autorep.mpc.blinding import BlindedModel
from autorep.mpc.cost import LINKS
from autorep.mpc.party import Party
from autorep.mpc.transport import Ledger, Throttled, Transport, handshake
from autorep.mpc.two_party.model import Maker, TwoPartyModel
from autorep.program import files


def memory_bytes(field: str) -> int:
    """VmRSS (memory held now) or VmHWM (the most ever held) of this process.

    `getrusage` would not do: its maximum includes the process that started this one.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    if found := re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE):
        return int(found[1]) * 1024
    raise ConfigError(f"/proc/self/status has no {field}; memory can only be measured on Linux")


def watch() -> Callable[[], dict[str, float]]:
    """Call it again for the seconds since, by the clock and of this process's processor."""
    started, cpu = time.perf_counter(), time.process_time()
    return lambda: {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}


class Worker:
    """Answers one benchmark; `runtime` is the memory of Python and its libraries before anything is loaded."""

    def __init__(self, control: Connection) -> None:
        self._control, self._runtime = control, memory_bytes("VmRSS")
        self.kits: list[bytes] = []

    def serve(self) -> None:
        """Answer messages until told to stop."""
        actions: dict[str, Callable[..., None]]
        actions = {"start": self._start, "make": self._make, "prepare": self._prepare, "run": self._run}
        while True:
            message, blobs = processes.receive(self._control)
            action = message.pop("do")
            if action == "stop":
                return
            actions[action](*blobs, **message)

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
        met = processes.meet(self._control, party)
        self.link: Transport = processes.linked(*met, Path(folder) / "keys")
        hello = {"party": party, "program": self.party.program_hash.hex(), "comparison": comparison}
        handshake(self.link, hello)
        spent = watch()
        seed, known_as = bytes.fromhex(model_seed), bytes.fromhex(blinding_id)
        if preparation == "dealer":
            self.party.setup(BlindedModel(program, party, self.link, seed, known_as))
        else:
            self._slow_down(link)  # the makers meet over the same link as the parties
            model = TwoPartyModel(program, party, preparation)
            self.party.setup(model)
            self.maker = Maker(model, self.link)
        _native.keep_freed_memory()
        once = {"setup_seconds": spent()["seconds"], "setup_bytes": self.link.ledger.total("offline").sent}
        if preparation == "dealer":
            self._slow_down(link)
        processes.send(self._control, {**once, "simd": _native.simd()})

    def _slow_down(self, link: str) -> None:
        speed = LINKS[link]
        if speed.bytes_per_second is not None:
            self.link = Throttled(self.link, speed.bytes_per_second, speed.one_way_delay)

    def _make(self, count: int, batch: int) -> None:
        """Kits made with the other party, kept in memory."""
        self.link.phase, self.link.ledger = "offline", Ledger()
        spent = watch()
        self.kits = [kit for _, kit in self.maker.make(count, batch)]
        sent, sizes = self.link.ledger.total("offline").sent, sum(len(kit) for kit in self.kits)
        total = {**spent(), "sent": sent, "kit_bytes": sizes}
        self.link.phase = "online"
        parts = {name: asdict(part) for name, part in self.maker.account.parts.items()}
        processes.send(self._control, {"total": total, **parts})

    def _prepare(self, path: str) -> None:
        """A dealer's kit is mapped, all of its pages at once, and its name removed."""
        kit: bytes | memoryview
        spent = watch()
        if self.kits:
            kit = self.kits.pop()
        else:
            with open(path, "rb") as file:
                whole = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # which Linux alone has
                kit = memoryview(mmap.mmap(file.fileno(), 0, flags=whole, prot=mmap.PROT_READ))
            os.unlink(path)
        self.query = self.party.prepare(self.party.source(kit))
        processes.send(self._control, spent())

    def _run(self, share: bytes) -> None:
        self.link.ledger = Ledger()
        query = self.query
        del self.query  # so that its kit goes before the next one comes
        shape, spent = (query.batch, *self.party.program.input.shape), watch()
        answer = self.party.run(self.link, query, np.frombuffer(share, np.uint64).reshape(shape))
        took = spent()
        processes.send(self._control, {}, np.ascontiguousarray(answer))
        total = self.link.ledger.total("online")
        moved = {label: [e.sent, e.rounds, e.seconds] for label, e in self.link.ledger.layers("online").items()}
        result: dict[str, Any] = {
            **took,
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
