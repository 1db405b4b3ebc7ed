"""Private inference of one network between two processes, measured phase by phase."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any, Literal

import numpy as np

from autorep.bench.pair import AT_ONCE, Pair, Query
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.cost import cost
from autorep.mpc.two_party.names import PreparationName, checked_comparison
from autorep.program.ir import Activation, Program

LinkName = Literal["loopback", "lan", "wan"]
WORDS = {  # what people call an operation; those that only move or add numbers are "other"
    "Conv": "convolution",
    "Linear": "linear",
    "Affine": "scale and shift",
    "Activation": "activation",
    "Sign": "activation",
    "Requantize": "requantise",
    "MaxPool": "max pooling",
    "Product": "product",
    "Input": "input",
}
TOLERANCE = 1e-2  # secure against fixed logits: the rounding bits differ, nothing else may


def measure(
    program: Program,
    images: np.ndarray,
    *,
    repeats: int = 5,
    link: LinkName = "loopback",
    threads: int = 1,
    comparison: ComparisonName | None = None,
    preparation: PreparationName = "dealer",
) -> dict[str, Any]:
    """Medians over `repeats` queries of the same batch, each with fresh randomness, after one that warms up."""
    comparison = checked_comparison(preparation, comparison)
    with Pair(program, comparison, link, threads, preparation) as pair:
        queries = [pair.query(images) for _ in range(repeats + 1)][1:]
    checked = min(len(images), 2)
    expected = program.run(images[:checked], mode="fixed")
    difference = max(float(np.abs(query.logits[:checked] - expected).max()) for query in queries)
    counted = cost(program, len(images), comparison, preparation)
    facts = {
        "network": program.info["name"],
        "image_size": program.input.shape[-1],
        "relus": program.relu_count,
        "link": link,
        "threads": threads,
        "comparison": comparison,
        "preparation": preparation,
        "estimate": counted.latency(link),
        **({} if preparation == "dealer" else {"making_estimate": counted.making_latency(link)}),
        "difference_to_fixed": difference,
        "agrees": difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())),
    }
    return facts | summarize(program, queries, pair)


def summarize(program: Program, queries: list[Query], pair: Pair) -> dict[str, Any]:
    """The figures of one series of queries; counts are the same in each, times are medians."""
    parties = [party for query in queries for party in query.parties]
    online = statistics.median(query.seconds for query in queries)
    dealer = statistics.median(query.dealer_seconds for query in queries)
    prepare = statistics.median(query.prepare_seconds for query in queries)
    batch = len(queries[0].logits)
    layers = _layers(program, [query.parties[0] for query in queries])
    operations: dict[str, float] = defaultdict(float)
    for row in layers:
        operations[row["operation"]] += row["seconds"] - row["wait_seconds"]
    operations["exchanges"] = sum(row["wait_seconds"] for row in layers)
    return {
        "batch": batch,
        "repeats": len(queries),
        "online_seconds": online,
        "online_seconds_each": [query.seconds for query in queries],
        "images_per_second": batch / online,
        "rounds": parties[0]["rounds"],
        "online_bytes_per_party": max(party["bytes"] for party in parties),
        "online_cpu_seconds_per_party": statistics.median(party["cpu_seconds"] for party in parties),
        "dealer_cpu_seconds": statistics.median(query.dealer_cpu_seconds for query in queries),
        "prepare_cpu_seconds_per_party": statistics.median(query.prepare_cpu_seconds for query in queries) / 2,
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
            "seconds": statistics.median(max(entry[name]["seconds"] for entry in query.making) for query in queries),
            "cpu_seconds_per_party": statistics.median(
                entry[name]["cpu_seconds"] for query in queries for entry in query.making
            ),
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
                "seconds": statistics.median(run["operations"][op.name] for run in runs),
                "wait_seconds": statistics.median(sum(run["exchanges"][label][2] for label in labels) for run in runs),
                "bytes": sum(runs[0]["exchanges"][label][0] for label in labels),
                "rounds": sum(runs[0]["exchanges"][label][1] for label in labels),
            }
        )
    return rows


def layer_seconds(program: Program, image: np.ndarray, repeats: int = 15) -> list[tuple[str, str, float]]:
    """(name, kind, median seconds at party 0, exchanges included) of every operation, for one image."""
    with Pair(program) as pair:
        runs = [pair.query(image).parties[0]["operations"] for _ in range(repeats)]
    kinds = [WORDS.get(type(op).__name__, "other") for op in program.ops]
    return [(op.name, kind, statistics.median(run[op.name] for run in runs)) for op, kind in zip(program.ops, kinds)]
