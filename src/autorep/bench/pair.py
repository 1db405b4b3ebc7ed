"""Two party processes, a dealer and a client, ready to be measured."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench.processes import Processes
from autorep.bench.setting import USUAL, Setting
from autorep.modes import Program
from autorep.mpc import tls
from autorep.mpc.blinding import Blinding
from autorep.mpc.dealer import Dealer
from autorep.mpc.local import join_output, share_input
from autorep.mpc.two_party.names import checked_comparison
from autorep.program import files

Making = list[dict[str, dict[str, float]]]  # by party: "total" and its parts by name (see `two_party.account`)


@dataclass(frozen=True)
class Query:
    """What one private inference took.

    Attributes:
        logits: the client's answer.
        seconds: from the client's shares leaving to the shares of the answer being back.
        dealer_seconds: making both kits: by the dealer, who writes them to files, or between the servers, a part of
            the time of `AT_ONCE` made together.
        prepare_seconds: the slower party's own part of the offline phase.
        dealer_cpu_seconds, prepare_cpu_seconds: processor time of the same, of both parties together.
        offline_bytes: of both kits.
        making: what each party measured of making kits without a dealer, for one kit.
        parties: what each party process measured (see `worker`).
    """

    logits: np.ndarray
    seconds: float
    dealer_seconds: float
    prepare_seconds: float
    dealer_cpu_seconds: float
    prepare_cpu_seconds: float
    offline_bytes: int
    parties: list[dict[str, Any]]
    making: Making


AT_ONCE = 4  # kits that two servers make together


@contextmanager
def two_parties(program: Program, setting: Setting = USUAL) -> Iterator[Pair]:
    """Two party processes over TLS on loopback; this process deals and is the client.

    Links other than loopback are throttled in user space; the dealer has as many threads as each party.
    """
    with (
        tempfile.TemporaryDirectory(prefix="autorep-bench-") as folder,
        Processes(["-m", "autorep.bench.worker"]) as processes,
    ):
        yield Pair(program, setting, Path(folder), processes)


class Pair:
    """What `two_parties` gives: they hold the program and are ready for queries."""

    def __init__(self, program: Program, setting: Setting, folder: Path, processes: Processes) -> None:
        self.program, self.setting, self._folder, self._processes = program, setting, folder, processes
        self.comparison = checked_comparison(setting.preparation, setting.comparison)
        self._made: list[Making] = []
        files.split(program, folder)
        tls.make_keys(folder / "keys", {})
        threads, preparation = setting.threads, setting.preparation
        _native.set_threads(threads)
        self.dealer = Dealer(program, comparison=self.comparison) if preparation == "dealer" else None
        blinding = self.dealer.blinding if self.dealer else Blinding()
        cores = sorted(os.sched_getaffinity(0))
        common = {
            "do": "start",
            "folder": str(folder),
            "blinding_id": blinding.id.hex(),
            "preparation": preparation,
            "comparison": self.comparison,
            "link": setting.link,
            "threads": threads,
        }
        seeds = [seed.hex() for seed in blinding.seeds]
        own = [[cores[party % len(cores)]] if threads == 1 else cores for party in (0, 1)]
        processes.send([{**common, "party": i, "model_seed": seeds[i], "cores": own[i]} for i in (0, 1)])
        processes.introduce()
        self.started = processes.gather()[0]

    def queries(self, images: np.ndarray) -> list[Query]:
        """As many inferences of the same batch as set, each with fresh randomness, after one that warms up."""
        return [self.query(images) for _ in range(self.setting.repeats + 1)][1:]

    def query(self, images: np.ndarray) -> Query:
        """One private inference of a batch, offline phase included, each phase timed apart."""
        paths = [self._folder / f"kit{party}" for party in (0, 1)]
        making: Making = []
        if self.dealer is None:
            making = self._make(len(images))
            totals = [entry["total"] for entry in making]
            dealer_seconds = max(total["seconds"] for total in totals)
            dealer_cpu = sum(total["cpu_seconds"] for total in totals)
            offline_bytes = int(sum(total["kit_bytes"] for total in totals))
        else:
            # torch may have threads that spin
            clock = time.thread_time if self.setting.threads == 1 else time.process_time
            started, cpu = time.perf_counter(), clock()
            with paths[0].open("wb") as sink0, paths[1].open("wb") as sink1:
                self.dealer.deal_to((sink0, sink1), len(images))
            dealer_seconds, dealer_cpu = time.perf_counter() - started, clock() - cpu
            offline_bytes = sum(path.stat().st_size for path in paths)
        self._processes.send([{"do": "prepare", "path": str(path)} for path in paths])
        prepared = self._processes.gather()[0]
        shares = share_input(self.program, images)
        started = time.perf_counter()
        self._processes.send([{"do": "run"}] * 2, shares)
        _, answers = self._processes.gather()
        seconds = time.perf_counter() - started
        parties, _ = self._processes.gather()
        shape = (len(images), *self.program.output.shape)
        joined = [np.frombuffer(answer, np.uint64).reshape(shape) for answer in answers]
        return Query(
            join_output(self.program, joined[0], joined[1]),
            seconds,
            dealer_seconds,
            max(message["seconds"] for message in prepared),
            dealer_cpu,
            sum(message["cpu_seconds"] for message in prepared),
            offline_bytes,
            parties,
            making,
        )

    def _make(self, batch: int) -> Making:
        """One kit at each party, of those made together; what it took, shared among them."""
        if not self._made:
            self._processes.send([{"do": "make", "count": AT_ONCE, "batch": batch}] * 2)
            measured = self._processes.gather()[0]
            each = [{part: {k: v / AT_ONCE for k, v in m[part].items()} for part in m} for m in measured]
            self._made = [each] * AT_ONCE
        return self._made.pop()
