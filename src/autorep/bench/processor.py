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
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from autorep import _native
from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import Pair, Query
from autorep.errors import ProtocolError
from autorep.program.ir import Program
from autorep.service.load import run_load, summary
from autorep.service.local import LocalDeployment
from autorep.service.web import authority

CASES: tuple[tuple[str, int | None], ...] = (
    ("resnet18", 12_900),
    ("resnet18", 0),
    ("resnet20", 5_652),
    ("digits_net", 512),
)
CLIENTS = (1, 4, 16)
_TICK = 1 / os.sysconf("SC_CLK_TCK")
REST_SECONDS = 60.0
_SETTLED = 0.03  # a deployment that spends less of a core than this has no kits left to make


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
    load_seconds: float = 4.0


def measure(
    cases: Sequence[tuple[str, int | None]] = CASES, levels: Sequence[str] = (), effort: Effort | None = None
) -> dict[str, Any]:
    """One row per network, number of kept ReLUs and instruction-set level (the processor's best if none is given)."""
    effort = effort or Effort()
    rows = []
    for network, relus in cases:
        program = build_program(network, relus=relus)
        for level in levels or (_native.simd(),):
            with at_level(level):
                row = {"network": network, "image_size": program.input.shape[-1], "relus": program.relu_count}
                row |= {"simd": level, **engine(program, effort.repeats), **deployed(program, effort)}
                rows.append(row)
    return {**asdict(effort), "rows": rows}


@contextlib.contextmanager
def at_level(level: str) -> Iterator[None]:
    """This process, and those it starts, compute at an instruction-set level."""
    before = os.environ.get("AUTOREP_SIMD")
    os.environ["AUTOREP_SIMD"] = level
    _native.set_simd(level)
    try:
        yield
    finally:
        _native.set_simd("auto")
        os.environ.pop("AUTOREP_SIMD")
        if before is not None:
            os.environ["AUTOREP_SIMD"] = before


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


def deployed(program: Program, effort: Effort) -> dict[str, Any]:
    """Of one deployment: what a query costs a single client's servers, then how it fares under load."""
    found: dict[str, Any] = {}
    if effort.service_queries or effort.load_seconds:
        with LocalDeployment(program, prepare=8) as deployment:
            if effort.service_queries:
                found["service"] = service(deployment, program, effort.service_queries)
            if effort.load_seconds:
                found["load"] = load(deployment, program, effort.load_seconds)
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
            before, runs = _spent(deployment), _metric(deployment, 0, "autorep_runs_total")
            result = summary(*run_load(clients, images, seconds))
            spent = sum(_spent(deployment).values()) - sum(before.values())
            runs = _metric(deployment, 0, "autorep_runs_total") - runs
            answered = max(1, result["answered"])
            results.append({**result, "cpu_seconds": spent / answered, "queries_a_run": answered / max(1.0, runs)})
    return results


def _metrics(deployment: LocalDeployment, party: int) -> str:
    with httpx.Client(verify=authority(deployment.ca), timeout=20) as web:
        return web.get(f"{deployment.urls[party]}/metrics").text


def _metric(deployment: LocalDeployment, party: int, name: str) -> float:
    found = re.search(rf"^{name}\{{.*\}} (\S+)$", _metrics(deployment, party), re.MULTILINE)
    return float(found[1]) if found else 0.0


def _parts(deployment: LocalDeployment) -> dict[str, float]:
    """Processor seconds of both servers by what their threads did."""
    found: defaultdict[str, float] = defaultdict(float)
    for party in (0, 1):
        text = _metrics(deployment, party)
        for part, seconds in re.findall(r'^autorep_processor_seconds_total\{part="(\w+)"\} (\S+)$', text, re.MULTILINE):
            found[part] += float(seconds)
    return dict(found)


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
