"""A load generator: many queries from several clients, with throughput, latencies and errors."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autorep.errors import AutorepError
from autorep.service.client import Client


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


def summary(tallies: Sequence[Tally], elapsed: float) -> dict[str, Any]:
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
