"""`autorep bench pi`: private inference of one network between two processes, measured phase by phase."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from autorep.bench.pair import Pair, Query
from autorep.bench.record import record
from autorep.cli.output import emit, megabytes, table
from autorep.errors import ConfigError
from autorep.mpc.cost import cost
from autorep.program.ir import Activation, Program

LinkName = Literal["loopback", "lan", "wan"]
TOLERANCE = 1e-2  # secure against fixed logits: the rounding bits differ, nothing else may


def measure(
    program: Program,
    images: np.ndarray,
    *,
    repeats: int = 5,
    link: LinkName = "loopback",
    threads: int = 1,
    comparison: Literal["dcf", "bits"] = "dcf",
) -> dict[str, Any]:
    """Medians over `repeats` queries of the same batch, each with fresh randomness, after one that warms up."""
    with Pair(program, comparison, link, threads) as pair:
        queries = [pair.query(images) for _ in range(repeats + 1)][1:]
    checked = min(len(images), 2)
    expected = program.run(images[:checked], mode="fixed")
    difference = max(float(np.abs(query.logits[:checked] - expected).max()) for query in queries)
    facts = {
        "network": program.info["name"],
        "image_size": program.input.shape[-1],
        "relus": program.relu_count,
        "link": link,
        "threads": threads,
        "comparison": comparison,
        "estimate": cost(program, len(images), comparison).latency(link),
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
        "offline_seconds": dealer + prepare,
        "dealer_seconds": dealer,
        "prepare_seconds": prepare,
        "offline_bytes": queries[0].offline_bytes,
        "setup_seconds": max(start["setup_seconds"] for start in pair.started),
        "setup_bytes_per_party": pair.started[0]["setup_bytes"],
        "peak_party_bytes": max(party["peak_bytes"] for party in parties),
        "runtime_bytes": max(party["runtime_bytes"] for party in parties),
        "simd": pair.started[0]["simd"],
        "operations": {name: seconds for name, seconds in operations.items() if seconds > 0},
        "layers": layers,
    }


def _layers(program: Program, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per operation of party 0: time, time in exchanges, bytes, rounds."""
    rows = []
    for op in program.ops:
        # An exchange's label is the operation's name and a suffix; see `plan.rounds`.
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


@dataclass(frozen=True)
class PrivateInference:
    """Latency, bytes, rounds and memory of private inference: two processes, TLS on loopback, random weights."""

    network: str = "resnet18"
    """Network by name, such as resnet18, wide_resnet22_8, efficientnet_b2, resnet20."""
    image_size: int | None = None
    """Rows and columns of the image; the network's usual size if not given."""
    relus: str = "12900"
    """ReLUs to keep, spread over the layers in proportion; `all` keeps every one."""
    batch: int = 1
    """Images in one query."""
    link: LinkName = "loopback"
    """loopback; lan: 1 GB/s and 0.1 ms round trip; wan: 100 Mb/s and 40 ms round trip."""
    threads: int = 1
    """Threads of each party; with 1 each party is pinned to a core of its own."""
    repeats: int = 7
    """Queries measured, each with fresh randomness; one more warms up."""
    comparison: Literal["dcf", "bits"] = "dcf"
    """How a kept ReLU is compared."""
    record: str | None = None
    """Also write bench/results/NAME.json."""
    json: str | None = None
    """Write the result as JSON to a file, or to standard output with `-`."""

    def run(self) -> int:
        result = self.measure()
        if self.record:
            record(self.record, result)
        emit(result, describe(result), self.json)
        return 0 if result["agrees"] else 1

    def measure(self) -> dict[str, Any]:
        """Build the network, run it, and return every figure."""
        from autorep.bench.networks import build_program, random_inputs

        if self.batch < 1 or self.repeats < 1 or self.threads < 1:
            raise ConfigError("--batch, --repeats and --threads must be at least 1")
        program = build_program(self.network, self.image_size, parse_relus(self.relus))
        options: dict[str, Any] = {"repeats": self.repeats, "link": self.link, "threads": self.threads}
        return measure(program, random_inputs(program, self.batch), comparison=self.comparison, **options)


def parse_relus(text: str) -> int | None:
    """A ReLU count as typed, None for `all`."""
    if text == "all":
        return None
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise ConfigError(f"--relus {text!r}; valid: a number such as 12900, or all") from None


def describe(result: dict[str, Any]) -> str:
    """The result for people."""
    title = f"{result['network']} at {result['image_size']}×{result['image_size']}, {result['relus']:,} ReLUs"
    setting = f"batch {result['batch']}, {result['link']}, {result['threads']} thread(s) a party, {result['simd']}"
    party = (result["peak_party_bytes"] - result["runtime_bytes"]) / 1e6
    facts = [
        ("online", f"{result['online_seconds']:.4f} s ({result['images_per_second']:.1f} images/s)"),
        ("estimated before the run", f"{result['estimate']['seconds']:.4f} s"),
        ("rounds", result["rounds"]),
        ("sent by each party", megabytes(result["online_bytes_per_party"])),
        ("dealer", f"{result['dealer_seconds']:.3f} s, {megabytes(result['offline_bytes'])} to both parties"),
        ("prepared by each party", f"{result['prepare_seconds']:.3f} s"),
        ("memory of a party", f"{party:.0f} MB beyond {result['runtime_bytes'] / 1e6:.0f} MB of Python"),
        ("logits against fixed point", f"{result['difference_to_fixed']:.1e}"),
    ]
    spent = sorted(result["operations"].items(), key=lambda item: -item[1])
    total = sum(result["operations"].values())
    rows = [(name, f"{1000 * seconds:.2f}", f"{100 * seconds / total:.0f} %") for name, seconds in spent]
    width = max(len(name) for name, _ in facts)
    lines = [f"{title}; {setting}", *(f"  {name:<{width}}  {value}" for name, value in facts), ""]
    return "\n".join([*lines, table(rows, ("operation", "ms online", "share"), "lrr")])
