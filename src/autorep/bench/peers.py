"""The same network, numbers and kept ReLUs on another system and on ours, alternating."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import Pair, Query
from autorep.bench.peer_systems import CRYPTEN, SPU, Answer, PeerPair, PeerSystem
from autorep.mpc.comparisons import ComparisonName
from autorep.program.ir import Program
from autorep.settings import warn

SYSTEMS = {"crypten": CRYPTEN, "spu": SPU}
FOLDER = Path("build") / "peers"
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


def measure(system: Literal["crypten", "spu"] = "crypten", repeats: int = 7, folder: Path = FOLDER) -> dict[str, Any]:
    """ResNet-18 at 32×32 at three budgets: all rows, and what they count; the other system is installed in `folder`."""
    rows = []
    for variant, relus in VARIANTS.items():
        warn(f"peers: {variant}")
        program = build_program("resnet18", 32, relus)
        rows += compare(SYSTEMS[system], variant, program, random_inputs(program, 1), repeats, folder)
    notes = NOTES if system == "crypten" else SPU_NOTES
    return {"network": "resnet18", "image_size": 32, "repeats": repeats, "rows": rows, "notes": list(notes)}
