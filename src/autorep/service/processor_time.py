"""Processor time, counted by the system, not sampled: of this process by what its threads do, for /metrics, and of
other processes with all they started.

The event loop's thread carries HTTP and the clients' TLS; lanes run queries; preparers prepare kits; the dealer's link
receives, checks and stores them; what is decided is decided by whoever has news. What threads have spent stays counted
after their end.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

LANE = "autorep-lane"
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PARTS = {"MainThread": "http", LANE: "online", "autorep-prepare": "prepare", "autorep-dealer-link": "kits"}


class ThreadTimes(Collector):
    """`autorep_processor_seconds_total{part}`; nothing where the system does not tell (other than Linux)."""

    def __init__(self) -> None:
        self._spent: dict[int, tuple[str, float]] = {}

    def collect(self) -> Iterator[CounterMetricFamily]:
        for thread in threading.enumerate():
            if thread.native_id is not None and (seconds := _seconds(thread.native_id)) is not None:
                self._spent[thread.native_id] = _part(thread.name), seconds
        totals: defaultdict[str, float] = defaultdict(float)
        for part, seconds in self._spent.values():
            totals[part] += seconds
        text = "Processor time by what threads do"
        family = CounterMetricFamily("autorep_processor_seconds", text, labels=["part"])
        for part, seconds in sorted(totals.items()):
            family.add_metric([part], seconds)
        yield family


def _part(name: str) -> str:
    return next((part for start, part in _PARTS.items() if name.startswith(start)), "links")


def _seconds(thread: int) -> float | None:
    """Seconds on a processor; the first number of schedstat is nanoseconds."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def processor_seconds(pid: int) -> float:
    """User and system time of a process and of its descendants, ended ones included."""
    seconds = _own_seconds(pid)
    for one in _descendants(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile: its time is its parent's now
            seconds += _own_seconds(one)
    return seconds


def _own_seconds(pid: int) -> float:
    # Fields after the name, which is in brackets: 11 to 14 are times of itself and of ended children, user and system.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) * _TICK


def _descendants(pid: int) -> Iterator[int]:
    """Each thread lists the processes that it started; threads and processes may end while they are asked."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            started = ""
            with suppress(FileNotFoundError, ProcessLookupError):
                started = (task / "children").read_text(encoding="ascii")
            for child in started.split():
                yield int(child)
                yield from _descendants(int(child))
