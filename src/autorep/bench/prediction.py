"""Latency as predicted by a rehearsal (`mpc/rehearsal.py`) beside latency as measured between two processes.

None of these networks was used to find a constant of the prediction, since it has none.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

from autorep import _native
from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import Pair
from autorep.bench.processor import at_level
from autorep.mpc.cost import cost
from autorep.mpc.rehearsal import rehearse
from autorep.program.ir import Program

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
    rows = []
    for network, relus in cases:
        program = build_program(network, relus=relus)
        for level in levels or (_native.simd(),):
            with at_level(level):
                rows.append(_row(program, network, level, repeats))
    return {"repeats": repeats, "rows": rows}


def _row(program: Program, network: str, level: str, repeats: int) -> dict[str, Any]:
    threads = _native.get_threads()
    _native.set_threads(1)
    _native.keep_freed_memory()  # as parties do
    started = time.perf_counter()
    rehearsed = rehearse(program)
    took = time.perf_counter() - started
    _native.set_threads(threads)
    counted = cost(program)
    with Pair(program) as pair:
        queries = [pair.query(random_inputs(program, 1)) for _ in range(repeats + 1)][1:]
    return {
        "network": network,
        "image_size": program.input.shape[-1],
        "relus": program.relu_count,
        "simd": level,
        "rehearsal_seconds": took,
        "cores": os.cpu_count(),
        "predicted": {
            "online_seconds": rehearsed.latency(counted, "loopback")["seconds"],
            "dealer_seconds": rehearsed.dealer_seconds,
            "prepare_seconds": rehearsed.prepare_seconds,
        },
        "measured": {
            "online_seconds": statistics.median(query.seconds for query in queries),
            "online_cpu_seconds": statistics.median(p["cpu_seconds"] for query in queries for p in query.parties),
            "dealer_seconds": statistics.median(query.dealer_cpu_seconds for query in queries),
            "prepare_seconds": statistics.median(query.prepare_cpu_seconds for query in queries) / 2,
        },
        "constants_seconds": counted.latency("loopback")["seconds"],
    }
