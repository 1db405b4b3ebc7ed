"""A load generator: many queries from several clients, with throughput, latencies and errors."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autorep.errors import AutorepError, ConfigError
from autorep.service.client import Client
from autorep.service.local import LocalDeployment


@dataclass
class Tally:
    """What one client saw."""

    seconds: list[float] = field(default_factory=list)
    online_seconds: list[float] = field(default_factory=list)
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    retries: int = 0


def run_load(clients: Sequence[Client], images: np.ndarray, seconds: float) -> tuple[list[Tally], float]:
    """Every client asks one image after another for so many seconds; returns their tallies and the time it took."""
    started = time.perf_counter()

    def ask(client: Client) -> Tally:
        tally, number = Tally(), 0
        while time.perf_counter() - started < seconds:
            number += 1
            try:
                (answer,) = client.predict(images[number % len(images)][None])
            except AutorepError as error:
                tally.errors[str(error)] += 1
                continue
            tally.seconds.append(answer.seconds)
            tally.online_seconds.append(answer.online_seconds)
            tally.retries += answer.attempts - 1
        return tally

    with ThreadPoolExecutor(len(clients)) as pool:
        tallies = list(pool.map(ask, clients))
    return tallies, time.perf_counter() - started


@dataclass(frozen=True)
class Serve:
    """Load two running servers, or a deployment started on this machine, and report throughput and latencies."""

    servers: tuple[str, ...] = ()
    """URLs of server 0 and server 1."""
    program: Path | None = None
    """Instead of servers: a compiled program's directory, served on this machine for the measurement."""
    ca: Path | None = None
    """Certificate authority of the servers."""
    token_file: Path | None = None
    """File with a client's token."""
    clients: int = 4
    """Clients that ask at the same time, each one image after another."""
    lanes: int = 2
    """Lanes of a deployment started here."""
    seconds: float = 10.0
    """How long to ask."""
    json: str | None = None
    """Write the result as JSON to this file (- for standard output)."""

    def run(self) -> int:
        from autorep.cli.output import emit, table

        if bool(self.servers) == (self.program is not None):
            raise ConfigError("bench serve: give either --servers URL0 URL1 or --program DIRECTORY")
        with ExitStack() as stack:
            urls, ca = self.servers, self.ca
            if self.program is not None:
                deployment = stack.enter_context(LocalDeployment(self.program, lanes=self.lanes))
                urls, ca = deployment.urls, deployment.ca
            token = None if self.token_file is None else self.token_file.read_text(encoding="utf-8").strip()
            clients = [
                stack.enter_context(Client(urls, token=token, ca=ca, concurrency=1)) for _ in range(self.clients)
            ]
            shape = clients[0].description.input_shape
            images = np.random.default_rng(0).random((16, *shape))  # public test data
            run_load(clients, images, min(1.0, self.seconds))  # connections, caches
            tallies, elapsed = run_load(clients, images, self.seconds)
        result = summary(tallies, elapsed)
        rows = [(name.replace("_", " "), value) for name, value in result.items() if name != "errors"]
        rows += [("error", f"{count} × {text}") for text, count in result["errors"].items()]  # type: ignore[attr-defined]
        emit(result, table(rows, ("what", "value")), self.json)
        return 0


def summary(tallies: Sequence[Tally], elapsed: float) -> dict[str, object]:
    """Throughput, percentiles of the time a client waits, and what went wrong."""
    seconds = np.array([value for tally in tallies for value in tally.seconds] or [np.nan])
    online = np.array([value for tally in tallies for value in tally.online_seconds] or [np.nan])
    errors = sum((tally.errors for tally in tallies), collections.Counter())
    answered = sum(len(tally.seconds) for tally in tallies)
    p50, p95, p99 = (round(1000 * float(np.percentile(seconds, p)), 3) for p in (50, 95, 99))
    return {
        "clients": len(tallies),
        "seconds": round(elapsed, 3),
        "answered": answered,
        "per_second": round(answered / elapsed, 3),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "online_p50_ms": round(1000 * float(np.median(online)), 3),
        "retries": sum(tally.retries for tally in tallies),
        "failed": sum(errors.values()),
        "errors": dict(errors),
    }
