"""Sections about what private inference costs: where the time goes, ours beside peers, how cost grows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from autorep.report.collect import Sources, walk
from autorep.report.frontier_figures import Growth, growth_curves
from autorep.report.network_figures import latency_stack
from autorep.report.page import Section, Table
from autorep.report.published import PUBLISHED
from autorep.report.style import thousands

PARTS = {
    "Conv": "linear layers",
    "Linear": "linear layers",
    "Affine": "linear layers",
    "Activation": "activations",
    "MaxPool": "activations",
    "Product": "activations",
    "exchanges": "exchanges",
}
NETWORK_DATA = {
    ("resnet18", 32): "cifar100",
    ("resnet18", 64): "tiny-imagenet",
    ("wide_resnet22_8", 32): "cifar100",
    ("wide_resnet22_8", 64): "tiny-imagenet",
    ("efficientnet_b2", 224): "imagenet",
}


def is_plain(row: dict[str, Any]) -> bool:
    """One image over loopback, one core a party, the default comparison."""
    how = (row.get("link"), row.get("batch"), row.get("threads"), row.get("comparison", "dcf"))
    return how == ("loopback", 1, 1, "dcf")


def breakdown_sections(sources: Sources) -> list[Section]:
    """Online time stacked by part, for every network measured on loopback with one core a party."""
    found: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in sources.results_with("network", "image_size", "relus", "online_seconds", "operations"):
        if is_plain(row):
            found[(row["network"], row["image_size"])][row["relus"]] = row
    sections = []
    for (network, size), rows in found.items():
        ordered = [rows[relus] for relus in sorted(rows)]
        bars = [(f"{thousands(row['relus'])} ReLUs", _parts(row)) for row in ordered]
        data = NETWORK_DATA.get((network, size))
        quoted = [
            (f"paper, {thousands(point.relus)}", point.seconds)
            for point in PUBLISHED
            if (point.network, point.data) == (network, data) and point.seconds is not None
        ]
        table = Table(
            ("ReLUs", "online, ms", "rounds", "sent per party, MB", "prepared ahead, MB", "dealer, s"),
            [
                (
                    f"{row['relus']:,}",
                    f"{1000 * row['online_seconds']:.1f}",
                    row["rounds"],
                    f"{row['online_bytes_per_party'] / 1e6:.2f}",
                    f"{row['offline_bytes'] / 1e6:.1f}",
                    f"{row.get('dealer_seconds', row.get('offline_seconds', 0)):.2f}",
                )
                for row in ordered
            ],
            (True,) * 6,
        )
        note = " Dashed: latencies the paper states for two GPUs, quoted." if quoted else ""
        sections.append(
            Section(
                f"breakdown-{network.replace('_', '-')}-{size}",
                f"Where the time goes: {network} at {size}×{size}",
                "Online latency of one image between two processes over TLS on loopback, one core each, split by what "
                f"a party does.{note}",
                latency_stack(bars, quoted),
                "; ".join(f"{name}: {1000 * sum(parts.values()):.0f} ms" for name, parts in bars),
                table,
            )
        )
    return sections


def _parts(row: dict[str, Any]) -> dict[str, float]:
    """Seconds by part, and what the client's round trip adds, so that the bar's length is the latency."""
    parts = {"linear layers": 0.0, "activations": 0.0, "exchanges": 0.0, "everything else": 0.0}
    for name, seconds in row["operations"].items():
        parts[PARTS.get(name, "everything else")] += seconds
    parts["everything else"] += max(0.0, row["online_seconds"] - sum(parts.values()))
    return parts


def peers_sections(sources: Sources) -> list[Section]:
    """Ours and other systems doing the same work in the same run; one section per recorded comparison."""
    sections = []
    for record in sources.records:
        rows = [row for row in walk(record.result) if {"system", "variant", "seconds"} <= row.keys() and row["seconds"]]
        if not rows:
            continue
        others = ", ".join(dict.fromkeys(row["system"] for row in rows if not row["system"].startswith("AutoReP")))
        bars = [(f"{row['system']}\n{row['variant']}", {row["system"]: row["seconds"]}) for row in rows]
        sections.append(
            Section(
                record.name.replace("/", "-"),
                f"Beside {others or 'itself'}: the same ResNet-18, the same machine",
                "Medians of one image, taking turns. What each system counts differs: ours online has its randomness "
                "prepared ahead, others make theirs in line; the rows that add our dealer's time are the stricter "
                "comparison.",
                latency_stack(bars),
                "; ".join(f"{row['system']} {row['variant']}: {1000 * row['seconds']:.0f} ms" for row in rows),
                Table(
                    ("system", "variant", "ms", "sent per party, MB", "rounds"),
                    [(row["system"], row["variant"], f"{1000 * row['seconds']:.0f}", *_traffic(row)) for row in rows],
                    (False, False, True, True, True),
                ),
            )
        )
    return sections


def _traffic(row: dict[str, Any]) -> tuple[str, str]:
    """Megabytes and rounds, where the system tells them."""
    sent, rounds = row.get("bytes_per_party"), row.get("rounds")
    return f"{sent / 1e6:.1f}" if sent is not None else "–", str(rounds) if rounds is not None else "–"


def growth_sections(sources: Sources) -> list[Section]:
    """Curves of latency, bytes and key material, from `autorep bench growth`."""
    panels = []
    for curve in sources.results_with("x", "y", "points"):
        fit = curve.get("fit") or {}
        line = (fit["slope"], fit["intercept"]) if {"slope", "intercept"} <= fit.keys() else None
        panels.append(Growth(curve["x"], curve["y"], [(x, y) for x, y in curve["points"]], line))
    if not panels:
        return []
    return [
        Section(
            "growth",
            "How cost grows",
            "Each panel varies one thing and holds the others; dashed lines are least-squares fits. Bytes and key "
            "material lie on a line in kept ReLUs, and rounds do not change (`autorep bench growth` fails otherwise).",
            growth_curves(panels),
            "; ".join(f"{panel.ylabel} by {panel.xlabel}" for panel in panels),
        )
    ]
