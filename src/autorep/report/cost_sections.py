"""Sections about what private inference costs: where the time goes, ours beside peers, how cost grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from autorep.report.collect import Sources
from autorep.report.figures import growth_curves, latency_stack
from autorep.report.page import Section
from autorep.report.published import paper_latencies
from autorep.report.tables import inference_title, inferences, peers, processor
from autorep.table import Table, milliseconds, thousands

# operations by what a party does in them; all others are "everything else"
PARTS = {
    **dict.fromkeys(("Conv", "Linear", "Affine"), "linear layers"),
    **dict.fromkeys(("Activation", "Sign", "MaxPool", "Product"), "activations"),
    "exchanges": "exchanges",
}
Bars = Sequence[tuple[str, dict[str, float]]]
Quoted = Sequence[tuple[str, float]]


def breakdown_sections(sources: Sources) -> Iterator[Section]:
    """Online time stacked by part, for every network measured on loopback with one core a party."""
    found: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in sources.inferences():
        found[(row["network"], row["image_size"])][row["relus"]] = row
    for (network, size), rows in found.items():
        ordered = [rows[relus] for relus in sorted(rows)]
        bars = [(f"{thousands(row['relus'])} ReLUs", _parts(row)) for row in ordered]
        quoted = [(f"paper, {thousands(relus)}", took) for relus, took in paper_latencies(network, size).items()]
        note = " Dashed: latencies the paper states for two GPUs, quoted." if quoted else ""
        yield _stacked(
            f"breakdown-{network.replace('_', '-')}-{size}",
            f"Where the time goes: {inference_title(ordered[0])}",
            "Online latency of one image between two processes over TLS on loopback, one core each, split by what "
            f"a party does.{note}{_inversion(ordered)}",
            bars,
            inferences(ordered),
            quoted,
        )


def _stacked(name: str, title: str, text: str, bars: Bars, table: Table, quoted: Quoted = ()) -> Section:
    """Seconds of one image by part, one bar a row."""
    told = "; ".join(f"{bar}: {milliseconds(sum(parts.values()), 0)}" for bar, parts in bars)
    return Section(name, title, text, latency_stack(bars, quoted), told.replace("\n", ", "), table)


def _parts(row: dict[str, Any]) -> dict[str, float]:
    """Seconds by part, and what the client's round trip adds, so that the bar's length is the latency.

    Parts are medians of their own and may add up to a little more than the median of the whole; they are then scaled.
    """
    parts = dict.fromkeys((*PARTS.values(), "everything else"), 0.0)
    for name, seconds in row["operations"].items():
        parts[PARTS.get(name, "everything else")] += seconds
    whole, known = row["online_seconds"], sum(parts.values())
    if known > whole:
        return {name: seconds * whole / known for name, seconds in parts.items()}
    parts["everything else"] += whole - known
    return parts


def _inversion(ordered: Sequence[dict[str, Any]]) -> str:
    """What differs where fewer ReLUs took longer, which nobody would expect."""
    for few, more in zip(ordered, ordered[1:]):
        if few["online_seconds"] > 1.05 * more["online_seconds"]:
            one, other = _parts(few), _parts(more)
            part = max(one, key=lambda name: one[name] - other[name])
            sent = [row["online_bytes_per_party"] / 1e6 for row in (few, more)]
            return (
                f" {thousands(few['relus'])} ReLUs took longer than {thousands(more['relus'])}: the difference is in "
                f"{part} ({1000 * one[part]:.0f} against {1000 * other[part]:.0f} ms), where {sent[0]:.0f} and "
                f"{sent[1]:.0f} MB were sent. Each was recorded in a run of its own; so much lies between two runs."
            )
    return ""


def peers_sections(sources: Sources) -> Iterator[Section]:
    """Ours and other systems doing the same work in the same run; one section per recorded comparison."""
    for record in sources.named("peers*"):
        rows = record.result["rows"]
        others = ", ".join(dict.fromkeys(row["system"] for row in rows if not row["system"].startswith("AutoReP")))
        bars = [(f"{row['system']}\n{row['variant']}", {row["system"]: row["seconds"]}) for row in rows]
        yield _stacked(
            record.name.replace("/", "-"),
            f"Beside {others or 'itself'}: the same ResNet-18, the same machine",
            "Medians of one image, taking turns. What each system counts differs: ours online has its randomness "
            "prepared ahead, others make theirs in line; the rows that add our dealer's time are the stricter "
            "comparison.",
            bars,
            peers(record.result),
        )


def processor_sections(sources: Sources) -> Iterator[Section]:
    """Processor time of all parties by part, from `autorep bench cost`."""
    for record in sources.named("cost"):
        bars = [(f"{inference_title(r)}\n{thousands(r['relus'])} ReLUs", _spent(r)) for r in record.result["rows"]]
        yield _stacked(
            "processor",
            "What a query costs: processor time of dealer, servers and service together",
            "Of one query of one image, user and system, both servers added up. What the service adds (HTTP, TLS, "
            "storing kits) is its whole less the engine's parts.",
            bars,
            processor(record.result),
        )


def _spent(row: dict[str, Any]) -> dict[str, float]:
    named = {"dealer": "dealer", "prepare": "prepare", "compute": "compute online", "exchange": "exchanges"}
    spent = {told: row["cpu_seconds"][name] for name, told in named.items()}
    if served := row.get("service"):
        spent["service"] = max(0.0, served["total"] - row["total_cpu_seconds"])
    return spent


def growth_sections(sources: Sources) -> Iterator[Section]:
    """Curves of latency, bytes and key material, from `autorep bench growth`."""
    for record in sources.named("growth"):
        curves = record.result["curves"]
        yield Section(
            "growth",
            "How cost grows",
            "Each panel varies one thing and holds the others; dashed lines are least-squares fits. Bytes and key "
            "material lie on a line in kept ReLUs, and rounds do not change (`autorep bench growth` fails otherwise).",
            growth_curves(curves),
            "; ".join(f"{curve['y']} by {curve['x']}" for curve in curves),
        )
