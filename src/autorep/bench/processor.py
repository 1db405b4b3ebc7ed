"""What a query costs: processor time of all parties together, whatever the machine is busy with; and what clients wait.

Processor time is by the processes' own counters (user and system time), not by sampling. The engine is measured with
two party processes over TLS on loopback, phase by phase; the service with a whole deployment on this machine, over
queries that one client asks one after another until the kits they used are made again, its servers also by what their
threads do. Throughput, waiting and processor time are also those of several clients who ask as fast as they are
answered; throughput and waiting count on an idle machine only.

A row takes about 30 s on an idle machine, at most a few minutes on a busy one: a deployment that does not come to rest
within REST_SECONDS is an error, since what its queries cost would not be known.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from autorep.bench.networks import at_levels, random_inputs
from autorep.bench.pair import Query, two_parties
from autorep.bench.setting import Setting
from autorep.errors import ProtocolError
from autorep.modes import Program
from autorep.service.load import run_load, summary
from autorep.service.local import LocalDeployment
from autorep.service.processor_time import processor_seconds
from autorep.service.web import authority

CASES: tuple[tuple[str, int | None], ...] = (
    ("resnet18", 12_900),
    ("resnet18", 0),
    ("resnet20", 5_652),
    ("digits_net", 512),
)
CLIENTS = (1, 4, 16)
REST_SECONDS = 60.0
_SETTLED = 0.03  # a deployment that spends less of a core than this has no kits left to make


def measure(
    cases: Sequence[tuple[str, int | None]] = CASES,
    levels: Sequence[str] = (),
    repeats: int = 7,
    service_queries: int = 20,
    load_seconds: float = 4.0,
) -> dict[str, Any]:
    """One row per network, number of kept ReLUs and instruction-set level (the processor's best if none is given).

    So many queries of the engine and through a deployment, and seconds under load by each number of clients.
    """
    rows = [
        row | engine(program, repeats) | deployed(program, service_queries, load_seconds)
        for program, row in at_levels(cases, levels)
    ]
    return {"repeats": repeats, "service_queries": service_queries, "load_seconds": load_seconds, "rows": rows}


def engine(program: Program, repeats: int) -> dict[str, Any]:
    """Medians over `repeats` queries, after one that warms up; both parties together."""
    with two_parties(program, Setting(repeats=repeats)) as pair:
        queries = pair.queries(random_inputs(program, 1))

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


def deployed(program: Program, queries: int, seconds: float) -> dict[str, Any]:
    """Of one deployment: what a query costs a single client's servers, then how it fares under load; 0 leaves out."""
    found: dict[str, Any] = {}
    if queries or seconds:
        with LocalDeployment(program, prepare=8) as deployment:
            if queries:
                found["service"] = service(deployment, program, queries)
            if seconds:
                found["load"] = load(deployment, program, seconds)
    return found


def service(deployment: LocalDeployment, program: Program, queries: int) -> dict[str, Any]:
    """Processor seconds a query of every process, and of the client, in a steady state; servers' parts as well."""
    image = np.zeros((1, *program.input.shape))  # what it shows does not matter
    with deployment.client(concurrency=1) as client:
        client.predict(image)
        _settle(deployment)
        before, parts, own = _spent(deployment), _parts(deployment), time.process_time()
        waited = [client.predict(image)[0].seconds for _ in range(queries)]
        own = time.process_time() - own
        _settle(deployment)
        after, parts_after = _spent(deployment), _parts(deployment)
    spent = {role: (after[role] - before[role]) / queries for role in before}
    each = {part: (seconds - parts.get(part, 0.0)) / queries for part, seconds in parts_after.items()}
    waits = {"client_seconds_p50": statistics.median(waited)}
    return {**spent, "client": own / queries, "total": sum(spent.values()), "parts": each, **waits}


def load(deployment: LocalDeployment, program: Program, seconds: float) -> list[dict[str, Any]]:
    """Throughput and waiting of one, four and sixteen clients (`load.summary`), and processor time of an answer."""
    images = np.zeros((1, *program.input.shape))
    results = []
    for count in CLIENTS:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(deployment.client(concurrency=1)) for _ in range(count)]
            run_load(clients, images, min(1.0, seconds))  # connections, caches
            before, runs = _spent(deployment), _runs(deployment)
            result = summary(*run_load(clients, images, seconds))
            spent = sum(_spent(deployment).values()) - sum(before.values())
            runs = _runs(deployment) - runs
            answered = max(1, result["answered"])
            results.append({**result, "cpu_seconds": spent / answered, "queries_a_run": answered / max(1.0, runs)})
    return results


def _metric(deployment: LocalDeployment, name: str, parties: Sequence[int]) -> dict[str, float]:
    """What these servers together count under a name, by the value of its first label."""
    found: defaultdict[str, float] = defaultdict(float)
    with httpx.Client(verify=authority(deployment.ca), timeout=20) as web:
        for party in parties:
            text = web.get(f"{deployment.urls[party]}/metrics").text
            for label, value in re.findall(rf'^{name}\{{\w+="([^"]*)".*\}} (\S+)$', text, re.MULTILINE):
                found[label] += float(value)
    return dict(found)


def _parts(deployment: LocalDeployment) -> dict[str, float]:
    """Processor seconds of both servers by what their threads did."""
    return _metric(deployment, "autorep_processor_seconds_total", (0, 1))


def _runs(deployment: LocalDeployment) -> float:
    return sum(_metric(deployment, "autorep_runs_total", (0,)).values())


def _settle(deployment: LocalDeployment, window: float = 1.0) -> None:
    """Wait until all processes together are idle: every used kit has been made again."""
    deadline = time.monotonic() + REST_SECONDS
    while time.monotonic() < deadline:
        before = sum(_spent(deployment).values())
        time.sleep(window)
        if sum(_spent(deployment).values()) - before < _SETTLED * window:
            return
    raise ProtocolError(
        f"bench cost: the deployment did not come to rest within {REST_SECONDS:g} s; is the machine busy?"
    )


def _spent(deployment: LocalDeployment) -> dict[str, float]:
    return {role: processor_seconds(process.pid) for role, process in deployment.processes.items()}
