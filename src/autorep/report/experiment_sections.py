"""Sections about recorded experiments: methods side by side, by the ReLUs they keep and by the time they then take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from autorep import data, models
from autorep.report.collect import Record, Sources
from autorep.report.figures import Series, frontier
from autorep.report.page import Section
from autorep.table import Table

MOST_LINES = 8  # in one figure; the table has every method
LINK = "wan"  # whose estimated latency the second figure shows: there methods differ most

Outcomes = Sequence[Mapping[str, Any]]


def experiment_sections(sources: Sources) -> Iterator[Section]:
    """Two figures an experiment: accuracy against ReLUs, and against estimated private latency."""
    for record in sources.named("experiments/*"):
        outcomes: Outcomes = [one for one in record.result["outcomes"] if one["relus"]]
        place = f"{models.title(record.result['network'])} on {data.title(record.result['data'])}"
        if outcomes:
            yield _section(
                record,
                f"Methods by ReLUs: {place}",
                "ReLUs kept",
                outcomes,
                lambda one: float(one["relus"]),
                "Test accuracy by the ReLUs that stay, all methods trained alike.",
            )
        if timed := [one for one in outcomes if one["private_seconds"]]:
            yield _section(
                record,
                f"Methods by private latency: {place}",
                "one private inference on a WAN, seconds (estimated)",
                timed,
                lambda one: float(one["private_seconds"][LINK]),
                "The same networks by what one private inference takes on a link of 100 Mb/s and 40 ms, by the cost "
                "model. A layer left without any ReLU costs a linear method no round, so methods differ here even at "
                "equal ReLUs.",
            )


def by_series(outcomes: Outcomes, x: Callable[[Mapping[str, Any]], float]) -> list[Series]:
    """A line a series, the best accuracy first; the seeds of one budget make one point."""
    points: dict[str, dict[float, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for one in outcomes:
        points[one["series"]][one["budget"]].append(one)
    series = [
        Series(
            name,
            [(mean(map(x, seeds)), mean(one["accuracy"] for one in seeds)) for seeds in budgets.values()],
            ours=name.startswith("AutoReP"),
        )
        for name, budgets in points.items()
    ]
    return sorted(series, key=lambda one: -max(y for _, y in one.points))


def _section(
    record: Record, title: str, xlabel: str, outcomes: Outcomes, x: Callable[[Mapping[str, Any]], float], text: str
) -> Section:
    series = by_series(outcomes, x)
    best = series[:MOST_LINES]
    rows = [
        (
            one["series"],
            f"{one['relus']:,}",
            one["seed"],
            one["epochs"],
            f"{one['accuracy']:.2f}",
            *(f"{one['private_seconds'].get(link, float('nan')):.3f}" for link in ("loopback", "lan", "wan")),
        )
        for one in sorted(outcomes, key=lambda one: (one["budget"], -one["accuracy"]))
    ]
    chosen = f" The {MOST_LINES} best of {len(series)}; the table has all." if len(series) > MOST_LINES else ""
    relus = xlabel.startswith("ReLUs")
    return Section(
        f"{record.name.replace('/', '-')}-{'relus' if relus else 'latency'}",
        title,
        text + chosen,
        frontier(best, xlabel, relus=relus),
        "; ".join(f"{one.name}: {y:.2f} % at {at:g}" for one in best for at, y in sorted(one.points)),
        Table(("method", "ReLUs", "seed", "epochs", "accuracy, %", "loopback s", "LAN s", "WAN s"), rows, "lrrrrrrr"),
        folded=True,
    )
