"""Two party processes, a dealer and a client, ready to be measured."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench import channel
from autorep.mpc import tls
from autorep.mpc.dealer import Dealer
from autorep.mpc.local import join_output, share_input
from autorep.mpc.plan import ComparisonName
from autorep.program import files
from autorep.program.ir import Program


@dataclass(frozen=True)
class Query:
    """What one private inference took.

    Attributes:
        logits: the client's answer.
        seconds: from the client's shares leaving to the shares of the answer being back.
        dealer_seconds: making both bundles.
        prepare_seconds: the slower party's own part of the offline phase.
        offline_bytes: of both bundles.
        parties: what each party process measured (see `worker`).
    """

    logits: np.ndarray
    seconds: float
    dealer_seconds: float
    prepare_seconds: float
    offline_bytes: int
    parties: list[dict[str, Any]]


class Pair:
    """Context manager: two party processes over TLS on loopback, one core each; this process deals and is the client.

    Args:
        link: "loopback", "lan" or "wan" (throttled in user space).
        threads: of each party and of the dealer; with 1 each party is pinned to a core of its own.
    """

    def __init__(
        self, program: Program, comparison: ComparisonName = "dcf", link: str = "loopback", threads: int = 1
    ) -> None:
        self.program, self.link, self.threads = program, link, threads
        self.comparison: ComparisonName = comparison
        self._controls: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Pair:
        self._folder = tempfile.TemporaryDirectory(prefix="autorep-bench-")
        try:
            self._start(Path(self._folder.name))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        for control in self._controls:
            with contextlib.suppress(OSError):  # that process ended already
                channel.send(control, {"do": "stop"})
            control.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _start(self, folder: Path) -> None:
        files.split(self.program, folder)
        tls.make_keys(folder / "keys", {})
        _native.set_threads(self.threads)
        started = time.perf_counter()
        self.dealer = Dealer(self.program, comparison=self.comparison)
        self.dealer_setup_seconds = time.perf_counter() - started
        cores = sorted(os.sched_getaffinity(0))
        for party in (0, 1):
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "autorep.bench.worker", str(theirs.fileno())]
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
            theirs.close()
            self._controls.append(Connection(ours.detach()))
            message = {
                "do": "start",
                "party": party,
                "folder": str(folder),
                "model_seed": self.dealer.masks.seeds[party].hex(),
                "mask_id": self.dealer.masks.mask_id.hex(),
                "comparison": self.comparison,
                "link": self.link,
                "cores": [cores[party % len(cores)]] if self.threads == 1 else cores,
                "threads": self.threads,
            }
            channel.send(self._controls[party], message)
        port = channel.receive(self._controls[0])[0]
        channel.send(self._controls[1], port)
        self.started = self._gather()[0]

    def _gather(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Both parties' next answers, and the first blob of each."""
        answers = [channel.receive(control) for control in self._controls]
        return [message for message, _ in answers], [blobs[0] for _, blobs in answers if blobs]

    def query(self, images: np.ndarray) -> Query:
        """One private inference of a batch, offline phase included, each phase timed apart."""
        started = time.perf_counter()
        bundles = self.dealer.deal(len(images)).bundles
        dealer_seconds = time.perf_counter() - started
        for party, (control, bundle) in enumerate(zip(self._controls, bundles)):
            path = Path(self._folder.name) / f"bundle{party}"
            path.write_bytes(bundle)
            channel.send(control, {"do": "prepare", "path": str(path)})
        offline_bytes = sum(map(len, bundles))
        del bundles
        prepared = self._gather()[0]
        shares = share_input(self.program, images)
        started = time.perf_counter()
        for control, share in zip(self._controls, shares):
            channel.send(control, {"do": "run"}, share)
        parties, answers = self._gather()
        seconds = time.perf_counter() - started
        shape = (len(images), *self.program.output.shape)
        joined = [np.frombuffer(answer, np.uint64).reshape(shape) for answer in answers]
        return Query(
            join_output(self.program, joined[0], joined[1]),
            seconds,
            dealer_seconds,
            max(message["seconds"] for message in prepared),
            offline_bytes,
            parties,
        )
