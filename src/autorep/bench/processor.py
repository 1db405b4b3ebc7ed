"""What a query costs: processor time of all parties together, whatever the machine is busy with; and what clients wait.

Processor time is by the processes' own counters (user and system time), not by sampling. The engine is measured with
two party processes over TLS on loopback, phase by phase; the service with a whole deployment on this machine, over
queries that one client asks one after another until the kits they used are made again. Throughput and waiting are those
of several clients who ask as fast as they are answered; they count on an idle machine only.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import Pair, Query
from autorep.program.ir import Program
from autorep.service.load import run_load, summary
from autorep.service.local import LocalDeployment

CASES: tuple[tuple[str, int | None], ...] = (
    ("resnet18", 12_900),
    ("resnet18", 0),
    ("resnet20", 5_652),
    ("digits_net", 512),
)
CLIENTS = (1, 4, 16)
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_SETTLED = 0.02  # a deployment that spends less of a core than this has no kits left to make


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        repeats: queries of the engine; one more warms up.
        service_queries: through a deployment; 0 leaves it out.
        load_seconds: under load by each number of clients; 0 leaves it out.
    """

    repeats: int = 7
    service_queries: int = 20
    load_seconds: float = 10.0


def measure(
    cases: Sequence[tuple[str, int | None]] = CASES, levels: Sequence[str] = (), effort: Effort | None = None
) -> dict[str, Any]:
    """One row per network, number of kept ReLUs and instruction-set level (the processor's best if none is given)."""
    effort = effort or Effort()
    rows = []
    before = os.environ.get("AUTOREP_SIMD")
    try:
        for network, relus in cases:
            program = build_program(network, relus=relus)
            for level in levels or (_native.simd(),):
                os.environ["AUTOREP_SIMD"] = level  # for the processes that are started
                _native.set_simd(level)
                row = {"network": network, "image_size": program.input.shape[-1], "relus": program.relu_count}
                row |= {"simd": level, **engine(program, effort.repeats)}
                if effort.service_queries:
                    row["service"] = service(program, effort.service_queries)
                if effort.load_seconds:
                    row["load"] = load(program, effort.load_seconds)
                rows.append(row)
    finally:
        _native.set_simd("auto")
        os.environ.pop("AUTOREP_SIMD")
        if before is not None:
            os.environ["AUTOREP_SIMD"] = before
    return {**asdict(effort), "rows": rows}


def engine(program: Program, repeats: int) -> dict[str, Any]:
    """Medians over `repeats` queries, after one that warms up; both parties together."""
    with Pair(program) as pair:
        queries = [pair.query(random_inputs(program, 1)) for _ in range(repeats + 1)][1:]

    def median(of: Any) -> float:
        return statistics.median(of(query) for query in queries)

    def both(query: Query, name: str) -> float:
        return float(sum(party[name] for party in query.parties))

    parts = {
        "dealer": median(lambda query: query.dealer_cpu_seconds),
        "prepare": median(lambda query: query.prepare_cpu_seconds),
        "compute": median(lambda query: both(query, "cpu_seconds") - both(query, "exchange_cpu_seconds")),
        "exchange": median(lambda query: both(query, "exchange_cpu_seconds")),
    }
    return {"cpu_seconds": parts, "total_cpu_seconds": sum(parts.values()), "offline_bytes": queries[0].offline_bytes}


def service(program: Program, queries: int) -> dict[str, float]:
    """Processor seconds a query of every process of a deployment, and of the client, in a steady state."""
    image = np.zeros((1, *program.input.shape))  # what it shows does not matter
    with LocalDeployment(program, prepare=32, lanes=1) as deployment, deployment.client(concurrency=1) as client:
        client.predict(image)
        _settle(deployment)
        before, own = _spent(deployment), time.process_time()
        for _ in range(queries):
            client.predict(image)
        own = time.process_time() - own
        _settle(deployment)
        after = _spent(deployment)
    spent = {role: (after[role] - before[role]) / queries for role in before}
    return {**spent, "client": own / queries, "total": sum(spent.values())}


def load(program: Program, seconds: float) -> list[dict[str, Any]]:
    """Throughput and waiting of one, four and sixteen clients (`load.summary`)."""
    images = np.zeros((1, *program.input.shape))
    results = []
    with LocalDeployment(program, prepare=32) as deployment:
        for count in CLIENTS:
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(deployment.client(concurrency=1)) for _ in range(count)]
                run_load(clients, images, min(1.0, seconds))  # connections, caches
                results.append(summary(*run_load(clients, images, seconds)))
    return results


def _settle(deployment: LocalDeployment, window: float = 1.0, limit: float = 120.0) -> None:
    """Wait until all processes together are idle: every used kit has been made again."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        before = sum(_spent(deployment).values())
        time.sleep(window)
        if sum(_spent(deployment).values()) - before < _SETTLED * window:
            return


def _spent(deployment: LocalDeployment) -> dict[str, float]:
    return {role: processor_seconds(process.pid) for role, process in deployment.processes.items()}


def processor_seconds(pid: int) -> float:
    """User and system time of a process and of its descendants, ended ones included."""
    return sum(_own_seconds(one) for one in (pid, *_descendants(pid)))


def _own_seconds(pid: int) -> float:
    # Fields after the name, which is in brackets: 11 to 14 are times of itself and of ended children, user and system.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) * _TICK


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            yield int(child)
            yield from _descendants(int(child))
