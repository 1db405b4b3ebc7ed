"""Latency as predicted by a rehearsal (`mpc/rehearsal.py`) beside latency as measured between two processes.

None of these networks was used to find a constant of the prediction, since it has none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from autorep import _native
from autorep.bench import pi
from autorep.bench.networks import at_levels
from autorep.bench.setting import Setting
from autorep.modes import Program
from autorep.mpc.cost import cost
from autorep.mpc.rehearsal import rehearse

CASES: tuple[tuple[str, int | None], ...] = (
    ("digits_net", 512),
    ("resnet20", 5_652),
    ("resnet20", None),
    ("resnet32", 10_000),
    ("resnet18", 12_900),
    ("resnet56", 10_000),
)


def measure(
    cases: Sequence[tuple[str, int | None]] = CASES, levels: Sequence[str] = (), repeats: int = 5
) -> dict[str, Any]:
    """One row per network, number of kept ReLUs and instruction-set level."""
    rows = [row | _compared(program, repeats) for program, row in at_levels(cases, levels)]
    return {"repeats": repeats, "rows": rows}


def _compared(program: Program, repeats: int) -> dict[str, Any]:
    threads = _native.get_threads()
    _native.set_threads(1)
    _native.keep_freed_memory()  # as parties do
    started = time.perf_counter()
    rehearsed = rehearse(program)
    took = time.perf_counter() - started
    _native.set_threads(threads)
    measured = pi.measure(program, Setting(repeats=repeats))
    return {
        "rehearsal_seconds": took,
        "cores": os.cpu_count(),
        "predicted": {
            "online_seconds": rehearsed.latency(cost(program), "loopback")["seconds"],
            "dealer_seconds": rehearsed.dealer_seconds,
            "prepare_seconds": rehearsed.prepare_seconds,
        },
        "measured": {
            "online_seconds": measured["online_seconds"],
            "online_cpu_seconds": measured["online_cpu_seconds_per_party"],
            "dealer_seconds": measured["dealer_cpu_seconds"],
            "prepare_seconds": measured["prepare_cpu_seconds_per_party"],
        },
        "constants_seconds": measured["estimate"]["seconds"],
    }
