"""Processor time of one query, all parties together: what an operator pays for, whatever the machine is busy with.

By the processes' own counters (user and system time), not by sampling. The engine is measured with two party
processes over TLS on loopback, phase by phase; the service with a whole deployment on this machine, over queries that
one client asks one after another until the kits they used are made again.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import Pair, Query
from autorep.program.ir import Program
from autorep.service.local import LocalDeployment

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_SETTLED = 0.02  # a deployment that spends less of a core than this has no kits left to make


def measure(
    cases: Sequence[tuple[str, int | None]], levels: Sequence[str], repeats: int, service_queries: int
) -> dict[str, Any]:
    """One row per network, number of kept ReLUs and instruction-set level; `service_queries` 0 leaves it out."""
    rows = []
    before = os.environ.get("AUTOREP_SIMD")
    try:
        for network, relus in cases:
            program = build_program(network, relus=relus)
            for level in levels:
                os.environ["AUTOREP_SIMD"] = level  # for the processes that are started
                _native.set_simd(level)
                row = {"network": network, "image_size": program.input.shape[-1], "relus": program.relu_count}
                row |= {"simd": level, **engine(program, repeats)}
                if service_queries:
                    row["service"] = service(program, service_queries)
                rows.append(row)
    finally:
        _native.set_simd("auto")
        os.environ.pop("AUTOREP_SIMD")
        if before is not None:
            os.environ["AUTOREP_SIMD"] = before
    return {"repeats": repeats, "service_queries": service_queries, "rows": rows}


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
