"""`autorep bench peers`: the same network, numbers and kept ReLUs on another system and on ours, alternating."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autorep.bench.pair import Pair, Query
from autorep.bench.peer_systems import CRYPTEN, SPU, Answer, PeerPair, PeerSystem
from autorep.bench.record import record
from autorep.cli.output import emit, megabytes, table
from autorep.errors import ConfigError
from autorep.mpc.inventory import ComparisonName
from autorep.program.ir import Program
from autorep.settings import warn

# variant -> ReLUs kept by the ResNet-18 of the paper's tables; None keeps all
VARIANTS: dict[str, int | None] = {"all ReLUs": None, "12,900 ReLUs": 12_900, "all quadratic": 0}
NOTES = (
    "Secret image and secret weights in both systems, semi-honest, two processes on loopback, one thread each, from "
    "shares of the image to shares of the logits. Ours also hides the quadratics' coefficients and encrypts the link "
    "(TLS 1.3); CrypTen gets public coefficients and a plain link.",
    "CrypTen makes its triples in line, from generators that both parties know (its default provider): its seconds "
    'contain that, and are what a user of it waits for. Ours are made ahead by a dealer; the rows "with dealer" '
    "add making both kits and both parties' preparation to the online seconds. "
    "Once per model ours also opens the masked weights.",
    "A kept ReLU is compared by distributed comparison functions (no rounds of its own, 1.3 kB prepared ahead), or by "
    "bits (more rounds, far less prepared ahead): the first is for links with a delay, the second for a local network.",
)


SPU_NOTES = (
    "SPU runs SEMI2K in a 64-bit ring with 18 fractional bits, secret weights, public coefficients, one thread; "
    "it makes its triples in line with its default first-party provider; it states neither bytes nor rounds.",
)


def compare(
    system: PeerSystem, variant: str, program: Program, images: np.ndarray, repeats: int, folder: Path
) -> list[dict[str, Any]]:
    """The other system's row, and two of ours per comparison protocol: online, and with the offline work added.

    Medians of `repeats` inferences of each, taking turns, after one that warms up.
    """
    expected = program.run(images, mode="float")
    comparisons: tuple[ComparisonName, ...] = ("dcf", "bits") if program.relu_count else ("dcf",)
    with ExitStack() as stack:
        pairs = {name: stack.enter_context(Pair(program, name)) for name in comparisons}
        peer = stack.enter_context(PeerPair(system, program, images, folder))
        queries: dict[str, list[Query]] = {name: [] for name in comparisons}
        answers: list[Answer] = []
        for _ in range(repeats + 1):
            for name, pair in pairs.items():
                queries[name].append(pair.query(images))
            answers.append(peer.query())
        counted = peer.count()
    common = {"variant": variant, "relus": program.relu_count}
    peer_seconds = statistics.median(answer.seconds for answer in answers[1:])
    rows: list[dict[str, Any]] = []
    for name in comparisons:
        rows += _ours(common | {"comparison": name}, queries[name][1:], peer_seconds, expected)
    theirs = {
        "seconds": peer_seconds,
        "bytes_per_party": counted["bytes"],
        "rounds": counted["rounds"],
        "seconds_each": [answer.seconds for answer in answers[1:]],
        "difference_to_float": _difference([answer.logits for answer in answers[1:]], expected),
    }
    return [*rows, {"system": system.name, **common, **theirs}]


def _ours(
    common: dict[str, Any], queries: list[Query], peer_seconds: float, expected: np.ndarray
) -> list[dict[str, Any]]:
    """Online, and online with dealer and preparation."""
    seconds = statistics.median(query.seconds for query in queries)
    offline = statistics.median(query.dealer_seconds + query.prepare_seconds for query in queries)
    counts = {"bytes_per_party": queries[0].parties[0]["bytes"], "rounds": queries[0].parties[0]["rounds"]}
    online = {
        "seconds": seconds,
        **counts,
        "ratio": peer_seconds / seconds,
        "seconds_each": [query.seconds for query in queries],
        "difference_to_float": _difference([query.logits for query in queries], expected),
    }
    dealt = {
        "seconds": seconds + offline,
        **counts,
        "ratio": peer_seconds / (seconds + offline),
        "dealer_seconds": statistics.median(query.dealer_seconds for query in queries),
        "offline_bytes": queries[0].offline_bytes,
    }
    system = "AutoReP" if common["comparison"] == "dcf" else "AutoReP by bits"
    return [{"system": system, **common, **online}, {"system": f"{system}, with dealer", **common, **dealt}]


def _difference(answers: list[np.ndarray], expected: np.ndarray) -> float:
    return max(float(np.abs(logits - expected).max()) for logits in answers)


@dataclass(frozen=True)
class Peers:
    """ResNet-18 at 32×32 on another system and on ours: latency, bytes, rounds, ratios at three budgets."""

    system: Literal["crypten", "spu"] = "crypten"
    """CrypTen 0.4.1, or SPU 0.9.5 (tens of seconds an image)."""
    repeats: int = 7
    """Alternating inferences measured per variant, after one that warms up."""
    peers_folder: Path = Path("build") / "peers"
    """Where the other system is installed on first use."""
    record: str | None = None
    """Also write bench/results/NAME.json."""
    json: str | None = None
    """Write the rows as JSON to a file, or to standard output with `-`."""

    def run(self) -> int:
        result = self.measure()
        if self.record:
            record(self.record, result)
        emit(result, describe(result), self.json)
        return 0

    def measure(self) -> dict[str, Any]:
        """All rows, and what they count."""
        from autorep.bench.networks import build_program, random_inputs

        if self.repeats < 1:
            raise ConfigError(f"--repeats {self.repeats}: at least 1, and 7 for a figure to publish")
        system = {"crypten": CRYPTEN, "spu": SPU}[self.system]
        rows = []
        for variant, relus in VARIANTS.items():
            warn(f"peers: {variant}")
            program = build_program("resnet18", 32, relus)
            rows += compare(system, variant, program, random_inputs(program, 1), self.repeats, self.peers_folder)
        return {
            "network": "resnet18",
            "image_size": 32,
            "repeats": self.repeats,
            "rows": rows,
            "notes": list(NOTES if self.system == "crypten" else SPU_NOTES),
        }


def describe(result: dict[str, Any]) -> str:
    """The rows for people."""
    rows = [
        (
            row["variant"],
            row["system"],
            f"{row['seconds']:.3f}",
            megabytes(row["bytes_per_party"]) if row["bytes_per_party"] else "",
            row["rounds"] or "",
            f"{row['ratio']:.1f}×" if "ratio" in row else "",
        )
        for row in result["rows"]
    ]
    head = ("variant", "system", "seconds", "sent per party", "rounds", "faster by")
    return "\n".join([table(rows, head, "llrrrr"), "", *result["notes"]])
