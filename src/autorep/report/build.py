"""The report: which sections the sources allow, in the order a reader wants them. Read this file first.

Each `_..._sections` function looks for what it can draw and returns nothing when the sources do not have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autorep import data, models
from autorep.errors import DataError
from autorep.report.collect import Sources, TrainingRun, collect, differing, origin
from autorep.report.cost_sections import breakdown_sections, growth_sections, peers_sections, processor_sections
from autorep.report.experiment_sections import experiment_sections
from autorep.report.figures import Series, frontier, grouped_bars, relu_maps, relus_by_layer, training_curves
from autorep.report.headlines import headlines
from autorep.report.page import Page, Section, slug
from autorep.report.published import PUBLISHED
from autorep.report.tables import zoo
from autorep.table import Table

ABLATIONS = {
    "function": ("Function", "What replaced activations become, everything else equal."),
    "method": ("Method", "How the ReLUs that stay are chosen, everything else equal."),
    "hysteresis": ("Hysteresis", "Half-width of the band in which a mask does not flip, everything else equal."),
    "recipe": ("Recipe", "The default recipe against the paper's own, at equal epochs and budget."),
}
HELD_OUT = (
    " Held-out accuracy lies above the test accuracy because the all-ReLU network that a run starts from had been "
    "trained on those images too: it ranks the epochs of a run and does not predict the test figure."
)


def build(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the page to `out` and its figures beside it; returns what was used and written."""
    sources = collect(paths)
    makers: tuple[Callable[[Sources], Iterable[Section]], ...] = (
        _frontier_sections,
        experiment_sections,
        _latency_frontier_sections,
        _published_sections,
        breakdown_sections,
        peers_sections,
        processor_sections,
        _zoo_sections,
        _layer_sections,
        _ablation_sections,
        _training_sections,
        growth_sections,
    )
    sections = [section for make in makers for section in make(sources)]
    if not sections:
        raise DataError("the given runs and results hold nothing to draw yet (no finished epoch, no benchmark)")
    page = Page(
        title="AutoReP report",
        lead=_lead(sources, sections),
        facts=headlines(sources),
        sections=sections,
        footer=f"Measured on {origin(sources.records) or 'this machine'}. No outside resource is loaded by this page.",
    )
    written = page.write(out)
    return {
        "report": str(out),
        "figures": [str(path) for path in written[1:]],
        "sections": [section.name for section in sections],
        "runs": [run.name for run in sources.runs],
        "results": [record.name for record in sources.records],
    }


def _lead(sources: Sources, sections: Sequence[Section]) -> str:
    """What the report was drawn from, and where figures of others stand in it, that they are not ours."""
    counts = ((sum(run.logged for run in sources.runs), "training run"), (len(sources.records), "recorded benchmark"))
    found = [f"{count} {what}{'s' * (count != 1)}" for count, what in counts if count] or ["finished models"]
    quoted = any("quoted" in section.text for section in sections)
    others = "Hollow markers and dashed outlines are quoted from publications; all else" if quoted else "Everything"
    return f"From {' and '.join(found)}. {others} was measured."


def _finished(sources: Sources) -> list[TrainingRun]:
    return [run for run in sources.runs if run.logged and run.is_replacement and "test_accuracy" in run.result]


def _by_network(runs: Iterable[TrainingRun]) -> Iterable[tuple[tuple[str, str], list[TrainingRun]]]:
    """Runs of one network on one data set together."""
    groups: dict[tuple[str, str], list[TrainingRun]] = defaultdict(list)
    for run in runs:
        groups[str(run.settings.get("model")), str(run.settings.get("data"))].append(run)
    return groups.items()


def _frontier_sections(sources: Sources) -> Iterator[Section]:
    """Accuracy against ReLUs, one figure per network and data set; with published points of that very network."""
    for (network, name), runs in _by_network(_finished(sources)):
        ours: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for run in runs:
            epochs, result = run.settings.get("epochs", 0), run.result
            length = f"{epochs} epochs" if epochs else "no training"  # runs of one length make one frontier
            ours[f"{run.settings.get('recipe')}, {length}"].append((result["relus"], result["test_accuracy"]))
            if "teacher_test_accuracy" in result:
                ours["all ReLU"].append((result["relus_total"], result["teacher_test_accuracy"]))
        quoted: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for point in PUBLISHED:
            if (point.data, point.network) == (name, network) and point.accuracy is not None:
                quoted[f"{point.method} (published)"].append((point.relus, point.accuracy))
        series = [Series(label, list(dict.fromkeys(points)), ours=True) for label, points in ours.items()]
        yield _frontier(
            f"frontier-{slug(network)}-{name}",
            f"Accuracy against ReLUs: {models.title(network)} on {data.title(name)}",
            "Up and to the left is better."
            + (" Hollow markers are quoted from publications, not measured here." if quoted else ""),
            [*series, *(Series(label, points) for label, points in quoted.items())],
            ("run", "ReLUs"),
        )


def _frontier(name: str, title: str, text: str, series: Sequence[Series], head: tuple[str, str]) -> Section:
    """Accuracy against what `head` ends with: ReLUs, or ms of online latency."""
    rows = [(one.name, f"{x:,.0f}", f"{y:.2f}") for one in series for x, y in sorted(one.points)]
    relus = head[1] == "ReLUs"
    return Section(
        name,
        title,
        text,
        frontier(series, "ReLUs kept" if relus else "online latency, ms", relus),
        "; ".join(f"{label}: {y} % at {x} {head[1]}" for label, x, y in rows),
        Table((*head, "accuracy, %"), rows, "lr"),
        folded=True,
    )


def _published_sections(sources: Sources) -> Iterator[Section]:
    """What others published, in a table of its own: for data sets we ran on and networks we measured."""
    ran = {run.settings.get("data") for run in _finished(sources)}
    timed = {row["network"] for row in sources.inferences()}
    rows = [
        (p.method, models.title(p.network), data.title(p.data), f"{p.relus:,}", f"{p.accuracy:.2f}")
        for p in PUBLISHED
        if p.accuracy is not None and (p.data in ran or p.network in timed)
    ]
    if rows:
        yield Section(
            "published",
            "Published accuracies",
            "Quoted from publications, with their own networks, training lengths and machines; none was measured here.",
            table=Table(("method", "network", "data set", "ReLUs", "accuracy, %"), rows, "lllr"),
            folded=True,
        )


def _latency_frontier_sections(sources: Sources) -> Iterator[Section]:
    """The zoo's test accuracies by the online latency measured for the same network and count of ReLUs."""
    measured = {
        (row["network"], row["image_size"], row["relus"]): 1000 * row["online_seconds"] for row in sources.inferences()
    }
    lines: dict[str, dict[float, float]] = defaultdict(dict)
    for run in [run for run in sources.runs if not run.logged and "teacher_test_accuracy" in run.result]:
        model, name, result = run.settings["model"], run.settings["data"], run.result
        for relus, accuracy in (("relus", "test_accuracy"), ("relus_total", "teacher_test_accuracy")):
            place = (model, data.spec(name).image_size, result[relus])
            if place in measured:
                lines[f"{models.title(model)}, {data.title(name)}"][measured[place]] = result[accuracy]
    if lines:
        yield _frontier(
            "frontier-latency",
            "Accuracy against latency: models of the zoo",
            "Accuracy on all test images, and the online latency of one image measured for the same network and count "
            "of ReLUs (two processes, TLS on loopback, one core each). The right end of each line keeps all ReLUs.",
            [Series(name, list(points.items()), ours=True) for name, points in lines.items()],
            ("network and data set", "ms"),
        )


def _zoo_sections(sources: Sources) -> Iterator[Section]:
    """Every finished model on the same real images in three ways."""
    for record in sources.named("zoo"):
        yield Section(
            "zoo",
            "Models of the zoo: float, fixed point, private",
            "The same test images three ways. A private answer may differ from fixed point only where the two best "
            "classes are nearer than the rounding error; such images are counted as ties.",
            table=zoo(record.result),
        )


def _layer_sections(sources: Sources) -> Iterator[Section]:
    """Where the ReLUs remain, in every finished model."""
    for run in [run for run in sources.runs if run.layers]:
        layers = [(row["name"], int(row["kept"]), int(row["relus"])) for row in run.layers]
        kept, total = sum(row[1] for row in layers), sum(row[2] for row in layers)
        title = f"{models.title(run.settings.get('model', run.name))}, {kept:,} of {total:,} ReLUs"
        yield Section(
            f"layers-{run.name}",
            f"Where the ReLUs remain: {run.name}",
            f"{title}: kept and replaced ReLUs of every layer, in the order of execution.",
            relus_by_layer(layers),
            "; ".join(f"{name}: {count} of {whole}" for name, count, whole in layers),
            Table(("layer", "kept", "all"), layers, "lrr"),
            folded=True,
        )
        if masks := {name: mask for name, mask in run.masks().items() if mask.ndim == 3}:
            yield Section(
                f"maps-{run.name}",
                f"The same as maps: {run.name}",
                f"{title}. Rows and columns as in the image; bright places keep their ReLU in more channels. The "
                "scale ends at the largest share and spreads small ones.",
                relu_maps(masks),
                "Heat maps of the share of channels that keep their ReLU, one per layer.",
            )


def _ablation_sections(sources: Sources) -> Iterator[Section]:
    """Runs that differ in one setting only (or, for recipes, in what the recipe fills in)."""
    runs = _finished(sources)
    for key, (title, text) in ABLATIONS.items():
        groups: dict[tuple[str, int], dict[str, float]] = {}
        for run in runs:
            equals = [other for other in runs if _same_but(run, other, key)]
            if len(equals) > 1:
                place = (models.title(str(run.settings.get("model"))), int(run.result["relus"]))
                groups.setdefault(place, {})[f"{key} {run.settings.get(key)}"] = run.result["test_accuracy"]
        if groups:
            bars = [(f"{model}\n{relus:,} ReLUs", values) for (model, relus), values in sorted(groups.items())]
            rows = [
                (model, f"{relus:,}", variant, f"{value:.2f}")
                for (model, relus), values in sorted(groups.items())
                for variant, value in values.items()
            ]
            yield Section(
                f"ablation-{key.replace('_', '-')}",
                title,
                text,
                grouped_bars(bars, "test accuracy, %"),
                "; ".join(f"{row[0]}, {row[1]} ReLUs, {row[2]}: {row[3]} %" for row in rows),
                Table(("network", "ReLUs", "variant", "accuracy, %"), rows, "lrlr"),
                folded=True,
            )


def _same_but(run: TrainingRun, other: TrainingRun, key: str) -> bool:
    if key == "recipe":
        same = ("model", "data", "epochs", "budget", "function")
        return all(run.settings.get(name) == other.settings.get(name) for name in same)
    return run is other or differing([run, other]) == [key]


def _training_sections(sources: Sources) -> Iterator[Section]:
    """Count, accuracy and flips by epoch, one figure per network and data set."""
    for (model, name), runs in _by_network(run for run in sources.runs if run.epochs and run.is_replacement):
        keys = [key for key in differing(runs) if key in ("recipe", "budget", *ABLATIONS, "epochs", "seed")]
        lines = [(_run_label(run, keys), run.epochs) for run in runs]
        yield Section(
            f"training-{slug(model)}-{name}",
            f"Training: {models.title(model)} on {data.title(name)}",
            "ReLUs kept, accuracy on images held out from training, and masks that flipped, after every epoch."
            + (HELD_OUT if any(run.above_test for run in runs) else ""),
            training_curves(lines),
            "Line plots by epoch of ReLU count, held-out accuracy and mask flips.",
        )


def _run_label(run: TrainingRun, keys: list[str]) -> str:
    """Recipe, budget, and whatever else tells this run from the others."""
    budget = run.settings.get("budget", 0)
    kept = f"{100 * budget:g} %" if budget < 1 else f"{budget:,.0f}"
    told = {"recipe", "budget", *(["hysteresis"] if "recipe" in keys else [])}  # a recipe fills in its own
    further = [f"{key} {run.settings.get(key)}" for key in keys if key not in told]
    return ", ".join([str(run.settings.get("recipe", run.name)), kept, *further])
