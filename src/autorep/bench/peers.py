"""The same network, numbers and kept ReLUs on another system and on ours, alternating."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import Pair, Query
from autorep.bench.peer_systems import CHEETAH, CRYPTEN, SPU, Answer, PeerPair, PeerSystem
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.two_party.names import PreparationName
from autorep.program.ir import Program
from autorep.settings import warn

SYSTEMS = {"crypten": CRYPTEN, "spu": SPU, "spu-cheetah": CHEETAH}
SystemName = Literal["crypten", "spu", "spu-cheetah"]
FOLDER = Path("build") / "peers"
# variant -> ReLUs kept by the ResNet-18 of the paper's tables; None keeps all
VARIANTS: dict[str, int | None] = {"all ReLUs": None, "12,900 ReLUs": 12_900, "all quadratic": 0}
NOTES = (
    "Secret image and secret weights in both systems, semi-honest, two processes on loopback, one thread each, from "
    "shares of the image to shares of the logits. Ours also hides the quadratics' coefficients and encrypts the link; "
    "CrypTen gets public coefficients and a plain link.",
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
CHEETAH_NOTES = (
    "Neither system has a dealer. SPU runs Cheetah (ring-LWE and silent transfers) in a 64-bit ring with 18 fractional "
    "bits, secret weights, public coefficients, one thread, and does all its work in line; it states neither bytes nor "
    "rounds. Ours makes its kits ahead, four at a time, of which one is counted, with secret coefficients and over TLS "
    '1.3; the rows "with preparation" add that to the online seconds and bytes.',
)
_NOTES: dict[SystemName, tuple[str, ...]] = {"crypten": NOTES, "spu": SPU_NOTES, "spu-cheetah": CHEETAH_NOTES}


@dataclass(frozen=True)
class Way:
    """One way of ours: how kept ReLUs are compared, and who makes kits."""

    comparison: ComparisonName
    preparation: PreparationName = "dealer"

    @property
    def name(self) -> str:
        return "AutoReP" if self.comparison == "dcf" else "AutoReP by bits"

    @property
    def offline(self) -> str:
        """What is added in the second row."""
        return "with dealer" if self.preparation == "dealer" else "with preparation"


def ways(system: PeerSystem, program: Program) -> tuple[Way, ...]:
    """Ours as the other system's equals: with a dealer where it has one, without where it has none."""
    if not system.dealer:
        return (Way("bits", "two-party"),)
    return (Way("dcf"), Way("bits")) if program.relu_count else (Way("dcf"),)


def compare(
    system: PeerSystem, variant: str, program: Program, images: np.ndarray, repeats: int, folder: Path
) -> list[dict[str, Any]]:
    """The other system's row, and two for each of our ways: online, and with the offline work added.

    Medians of `repeats` inferences of each, taking turns, after one that warms up.
    """
    expected = program.run(images, mode="float")
    with ExitStack() as stack:
        pairs = {
            way: stack.enter_context(Pair(program, way.comparison, preparation=way.preparation))
            for way in ways(system, program)
        }
        peer = stack.enter_context(PeerPair(system, program, images, folder))
        queries: dict[Way, list[Query]] = {way: [] for way in pairs}
        answers: list[Answer] = []
        for _ in range(repeats + 1):
            for way, pair in pairs.items():
                queries[way].append(pair.query(images))
            answers.append(peer.query())
        counted = peer.count()
    common = {"variant": variant, "relus": program.relu_count}
    peer_seconds = statistics.median(answer.seconds for answer in answers[1:])
    rows: list[dict[str, Any]] = []
    for way, asked in queries.items():
        rows += _ours(way, common | {"comparison": way.comparison}, asked[1:], peer_seconds, expected)
    theirs = {
        "seconds": peer_seconds,
        "bytes_per_party": counted["bytes"],
        "rounds": counted["rounds"],
        "cpu_seconds_per_party": _median([answer.cpu_seconds for answer in answers[1:]]),
        "seconds_each": [answer.seconds for answer in answers[1:]],
        "difference_to_float": _difference([answer.logits for answer in answers[1:]], expected),
    }
    return [*rows, {"system": system.name, **common, **theirs}]


def _ours(
    way: Way, common: dict[str, Any], queries: list[Query], peer_seconds: float, expected: np.ndarray
) -> list[dict[str, Any]]:
    """Online, and online with what was made ahead."""
    seconds = statistics.median(query.seconds for query in queries)
    offline = statistics.median(query.dealer_seconds + query.prepare_seconds for query in queries)
    counts = {"bytes_per_party": queries[0].parties[0]["bytes"], "rounds": queries[0].parties[0]["rounds"]}
    online_cpu = statistics.median(max(party["cpu_seconds"] for party in query.parties) for query in queries)
    online = {
        "seconds": seconds,
        **counts,
        "cpu_seconds_per_party": online_cpu,
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
    if making := queries[0].making:
        dealt["bytes_per_party"] += max(int(entry["total"]["sent"]) for entry in making)
        made = statistics.median(max(entry["total"]["cpu_seconds"] for entry in query.making) for query in queries)
        prepared = statistics.median(query.prepare_cpu_seconds for query in queries) / 2
        dealt["cpu_seconds_per_party"] = online_cpu + made + prepared
    return [{"system": way.name, **common, **online}, {"system": f"{way.name}, {way.offline}", **common, **dealt}]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _difference(answers: list[np.ndarray], expected: np.ndarray) -> float:
    return max(float(np.abs(logits - expected).max()) for logits in answers)


def measure(system: SystemName = "crypten", repeats: int = 7, folder: Path = FOLDER, only: str = "") -> dict[str, Any]:
    """ResNet-18 at 32×32 at the budgets whose name contains `only`; the other system is installed in `folder`."""
    rows = []
    for variant, relus in VARIANTS.items():
        if only not in variant:
            continue
        warn(f"peers: {variant}")
        program = build_program("resnet18", 32, relus)
        rows += compare(SYSTEMS[system], variant, program, random_inputs(program, 1), repeats, folder)
    notes = list(_NOTES[system])
    return {"network": "resnet18", "image_size": 32, "repeats": repeats, "rows": rows, "notes": notes}
