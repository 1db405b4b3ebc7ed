"""The same network, numbers and kept ReLUs on another system and on ours, alternating."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import Query, two_parties
from autorep.bench.peer_systems import SYSTEMS, Answer, PeerSystem, limits, two_peers
from autorep.bench.setting import Setting
from autorep.modes import Program
from autorep.settings import warn

FOLDER = Path("build") / "peers"
# variant -> ReLUs kept by the ResNet-18 of the paper's tables; None keeps all
VARIANTS: dict[str, int | None] = {"all ReLUs": None, "12,900 ReLUs": 12_900, "all quadratic": 0}


def ways(system: PeerSystem, program: Program) -> tuple[Setting, ...]:
    """Ours as the other system's equals: with a dealer where it has one, without where it has none."""
    if not system.dealer:
        return (Setting(comparison="bits", preparation="two-party"),)
    return (Setting(comparison="dcf"), Setting(comparison="bits"))[: 2 if program.relu_count else 1]


def compare(
    system: PeerSystem, variant: str, program: Program, images: np.ndarray, repeats: int, folder: Path
) -> list[dict[str, Any]]:
    """The other system's row, and two for each of our ways: online, and with the offline work added.

    Medians of `repeats` inferences of each, taking turns, after one that warms up.
    """
    expected = program.run(images, mode="float")
    with ExitStack() as stack:
        pairs = {way: stack.enter_context(two_parties(program, way)) for way in ways(system, program)}
        peer = stack.enter_context(two_peers(system, program, images, folder))
        queries: dict[Setting, list[Query]] = {way: [] for way in pairs}
        answers: list[Answer] = []
        for _ in range(repeats + 1):
            for way, pair in pairs.items():
                queries[way].append(pair.query(images))
            answers.append(peer.query())
        counted = peer.count()
    common = {"variant": variant, "relus": program.relu_count}
    peer_seconds = median(answer.seconds for answer in answers[1:])
    rows: list[dict[str, Any]] = []
    for way, asked in queries.items():
        rows += _ours(way, common | {"comparison": way.comparison}, asked[1:], peer_seconds, expected)
    known = [answer.cpu_seconds for answer in answers[1:] if answer.cpu_seconds is not None]
    theirs = {
        "seconds": peer_seconds,
        "bytes_per_party": counted["bytes"],
        "rounds": counted["rounds"],
        "instructions": peer.instructions,
        "cpu_seconds_per_party": median(known) if known else None,
        "seconds_each": [answer.seconds for answer in answers[1:]],
        "difference_to_float": _difference([answer.logits for answer in answers[1:]], expected),
    }
    return [*rows, {"system": system.name, **common, **theirs}]


def _ours(
    way: Setting, common: dict[str, Any], queries: list[Query], peer_seconds: float, expected: np.ndarray
) -> list[dict[str, Any]]:
    """Online, and online with what was made ahead."""
    name = "AutoReP" if way.comparison == "dcf" else "AutoReP by bits"
    ahead = "with dealer" if way.preparation == "dealer" else "with preparation"
    seconds = median(query.seconds for query in queries)
    offline = median(query.dealer_seconds + query.prepare_seconds for query in queries)
    counts = {"bytes_per_party": queries[0].parties[0]["bytes"], "rounds": queries[0].parties[0]["rounds"]}
    online_cpu = median(max(party["cpu_seconds"] for party in query.parties) for query in queries)
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
        "dealer_seconds": median(query.dealer_seconds for query in queries),
        "offline_bytes": queries[0].offline_bytes,
    }
    if making := queries[0].making:
        dealt["bytes_per_party"] += max(int(entry["total"]["sent"]) for entry in making)
        made = median(max(entry["total"]["cpu_seconds"] for entry in query.making) for query in queries)
        prepared = median(query.prepare_cpu_seconds for query in queries) / 2
        dealt["cpu_seconds_per_party"] = online_cpu + made + prepared
    return [{"system": name, **common, **online}, {"system": f"{name}, {ahead}", **common, **dealt}]


def _difference(answers: list[np.ndarray], expected: np.ndarray) -> float:
    return max(float(np.abs(logits - expected).max()) for logits in answers)


def measure(system: str = "crypten", repeats: int = 7, folder: Path = FOLDER, only: str = "") -> dict[str, Any]:
    """ResNet-18 at 32×32 at the budgets whose name contains `only`; the other system is installed in `folder`."""
    rows = []
    for variant, relus in ((name, count) for name, count in VARIANTS.items() if only in name):
        warn(f"peers: {variant}")
        program = build_program("resnet18", 32, relus)
        rows += compare(SYSTEMS[system], variant, program, random_inputs(program, 1), repeats, folder)
    notes, level = list(SYSTEMS[system].notes), _native.simd()
    if limited := ", ".join(f"{name}={value}" for name, value in limits().items()):
        notes.append(
            f"Both at the level of {level}: ours by AUTOREP_SIMD={level}, the other system's processes by {limited}."
        )
    common = {"network": "resnet18", "image_size": 32, "simd": level, "repeats": repeats}
    return {**common, "rows": rows, "notes": notes}
