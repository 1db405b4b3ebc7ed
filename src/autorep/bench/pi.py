"""Private inference of one network between two processes, measured phase by phase."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np

from autorep.bench.networks import random_inputs
from autorep.bench.pair import AT_ONCE, Query, two_parties
from autorep.bench.setting import USUAL, Setting
from autorep.modes import Program
from autorep.mpc.cost import cost
from autorep.program.ir import Activation

TOLERANCE = 1e-2  # secure against fixed logits: the rounding bits differ, nothing else may


def measure(program: Program, setting: Setting = USUAL) -> dict[str, Any]:
    """Queries of the same batch of random images; counts are the same in each, times are medians."""
    images = random_inputs(program, setting.batch)
    with two_parties(program, setting) as pair:
        queries = pair.queries(images)
    link, preparation = setting.link, setting.preparation
    checked = min(len(images), 2)
    expected = program.run(images[:checked], mode="fixed")
    difference = max(float(np.abs(query.logits[:checked] - expected).max()) for query in queries)
    counted = cost(program, setting.batch, pair.comparison, preparation)
    parties = [party for query in queries for party in query.parties]
    online, dealer, prepare, dealer_cpu, prepare_cpu = (
        median(getattr(query, name) for query in queries)
        for name in ("seconds", "dealer_seconds", "prepare_seconds", "dealer_cpu_seconds", "prepare_cpu_seconds")
    )
    layers = _layers(program, [query.parties[0] for query in queries])
    operations: dict[str, float] = defaultdict(float)
    for row in layers:
        operations[row["operation"]] += row["seconds"] - row["wait_seconds"]
    operations["exchanges"] = sum(row["wait_seconds"] for row in layers)
    return {
        "network": program.info["name"],
        "image_size": program.input.shape[-1],
        "relus": program.relu_count,
        "link": link,
        "threads": setting.threads,
        "comparison": pair.comparison,
        "preparation": preparation,
        "estimate": counted.latency(link),
        **({} if preparation == "dealer" else {"making_estimate": counted.making_latency(link)}),
        "difference_to_fixed": difference,
        "agrees": difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())),
        "batch": setting.batch,
        "repeats": len(queries),
        "online_seconds": online,
        "online_seconds_each": [query.seconds for query in queries],
        "images_per_second": setting.batch / online,
        "rounds": parties[0]["rounds"],
        "online_bytes_per_party": max(party["bytes"] for party in parties),
        "online_cpu_seconds_per_party": median(party["cpu_seconds"] for party in parties),
        "dealer_cpu_seconds": dealer_cpu,
        "prepare_cpu_seconds_per_party": prepare_cpu / 2,
        "offline_seconds": dealer + prepare,
        "dealer_seconds": dealer,
        "prepare_seconds": prepare,
        "offline_bytes": queries[0].offline_bytes,
        **_making(queries),
        "setup_seconds": max(start["setup_seconds"] for start in pair.started),
        "setup_bytes_per_party": pair.started[0]["setup_bytes"],
        "peak_party_bytes": max(party["peak_bytes"] for party in parties),
        "runtime_bytes": max(party["runtime_bytes"] for party in parties),
        "simd": pair.started[0]["simd"],
        "operations": {name: seconds for name, seconds in operations.items() if seconds > 0},
        "layers": layers,
    }


def _making(queries: list[Query]) -> dict[str, Any]:
    """What two servers without a dealer spent on one kit, `AT_ONCE` made together."""
    if not queries[0].making:
        return {}
    parts = {
        name: {
            "seconds": median(max(entry[name]["seconds"] for entry in query.making) for query in queries),
            "cpu_seconds_per_party": median(entry[name]["cpu_seconds"] for query in queries for entry in query.making),
            "bytes": sum(entry[name]["sent"] for entry in queries[0].making),
        }
        for name in queries[0].making[0]
    }
    total = parts.pop("total")
    return {
        "made_at_once": AT_ONCE,
        "making_cpu_seconds_per_party": total["cpu_seconds_per_party"],
        "making_bytes": total["bytes"],
        "making_parts": parts,
    }


def _layers(program: Program, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per operation of party 0: time, time in exchanges, bytes, rounds."""
    rows = []
    for op in program.ops:
        # An exchange's label is the operation's name and a suffix; see `mpc.inventory`.
        labels = [label for label in runs[0]["exchanges"] if label.rpartition("/")[0].partition("/")[0] == op.name]
        rows.append(
            {
                "name": op.name,
                "operation": type(op).__name__,
                "shape": list(op.shape),
                "kept": op.kept_count if isinstance(op, Activation) else 0,
                "seconds": median(run["operations"][op.name] for run in runs),
                "wait_seconds": median(sum(run["exchanges"][label][2] for label in labels) for run in runs),
                "bytes": sum(runs[0]["exchanges"][label][0] for label in labels),
                "rounds": sum(runs[0]["exchanges"][label][1] for label in labels),
            }
        )
    return rows
