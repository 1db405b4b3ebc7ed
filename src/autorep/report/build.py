"""The report: which sections the sources allow, in the order a reader wants them. Read this file first.

Each `_..._sections` function looks for what it can draw and returns nothing when the sources do not have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autorep import data, models
from autorep.errors import DataError
from autorep.report.collect import Sources, TrainingRun, collect, differing, origin
from autorep.report.cost_sections import breakdown_sections, growth_sections, peers_sections
from autorep.report.frontier_figures import Series, frontier, grouped_bars
from autorep.report.headlines import headlines
from autorep.report.network_figures import relu_maps, relus_by_layer, training_curves
from autorep.report.page import Page, Section
from autorep.report.published import PUBLISHED
from autorep.report.table import Table
from autorep.report.tables import is_plain, zoo

ABLATIONS = {
    "function": ("Function", "What replaced activations become, everything else equal."),
    "method": ("Method", "How the ReLUs that stay are chosen, everything else equal."),
    "hysteresis": ("Hysteresis", "Half-width of the band in which a mask does not flip, everything else equal."),
    "recipe": ("Recipe", "The default recipe against the paper's own, at equal epochs and budget."),
}


def build(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the page to `out` and its figures beside it; returns what was used and written."""
    sources = collect(paths)
    makers: tuple[Callable[[Sources], list[Section]], ...] = (
        _frontier_sections,
        _latency_frontier_sections,
        _published_sections,
        breakdown_sections,
        peers_sections,
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
        lead=(
            f"From {sum(run.logged for run in sources.runs)} training runs and {len(sources.records)} recorded "
            "benchmarks. Hollow markers and dashed outlines are quoted from publications; everything else was measured."
        ),
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


def _finished(sources: Sources) -> list[TrainingRun]:
    return [run for run in sources.runs if run.logged and run.is_replacement and "test_accuracy" in run.result]


def _frontier_sections(sources: Sources) -> list[Section]:
    """Accuracy against ReLUs, one figure per data set; published points of the very networks that we ran."""
    by_data: dict[str, list[TrainingRun]] = defaultdict(list)
    for run in _finished(sources):
        by_data[run.settings.get("data", "unknown")].append(run)
    sections = []
    for name, runs in by_data.items():
        networks = {run.settings["model"] for run in runs}
        ours: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for run in runs:
            epochs = run.settings.get("epochs", 0)
            length = f"{epochs} epochs" if epochs else "no training"  # runs of one length make one frontier
            network = f"ours: {models.title(run.settings['model'])}"
            label = f"{network}, {run.settings.get('recipe')}, {length}"
            ours[label].append((run.result["relus"], run.result["test_accuracy"]))
            if "teacher_test_accuracy" in run.result:
                whole = (run.result["relus_total"], run.result["teacher_test_accuracy"])
                if whole not in ours[f"{network}, all ReLU"]:
                    ours[f"{network}, all ReLU"].append(whole)
        series = [Series(label, points, ours=True) for label, points in ours.items()]
        quoted: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for point in PUBLISHED:
            if point.data == name and point.network in networks and point.accuracy is not None:
                method = point.method.replace(" (paper)", "")
                quoted[f"{method}, {models.title(point.network)}"].append((point.relus, point.accuracy))
        series += [Series(label, points) for label, points in quoted.items()]
        rows = [(one.name, f"{x:,.0f}", f"{y:.2f}") for one in series for x, y in sorted(one.points)]
        sections.append(
            Section(
                f"frontier-{name}",
                f"Accuracy against ReLUs: {data.title(name)}",
                "Up and to the left is better. Networks differ in size, so compare a network with its own all-ReLU "
                "accuracy." + (" Hollow markers are quoted from publications, not measured here." if quoted else ""),
                frontier(series, "ReLUs kept", relus=True),
                "; ".join(f"{label}: {y} % at {x} ReLUs" for label, x, y in rows),
                Table(("method and network", "ReLUs", "accuracy, %"), rows, "lrr"),
                folded=True,
            )
        )
    return sections


def _published_sections(sources: Sources) -> list[Section]:
    """What others published, in a table of its own: for data sets we ran on and networks we measured."""
    ran = {run.settings.get("data") for run in _finished(sources)}
    timed = {row["network"] for row in sources.results_with("network", "online_seconds")}
    points = [p for p in PUBLISHED if p.accuracy is not None and (p.data in ran or p.network in timed)]
    if not points:
        return []
    rows = [
        (
            p.method.replace(" (paper)", ""),
            models.title(p.network),
            data.title(p.data),
            f"{p.relus:,}",
            f"{p.accuracy:.2f}",
        )
        for p in points
    ]
    return [
        Section(
            "published",
            "Published accuracies",
            "Quoted from publications, with their own networks, training lengths and machines; none was measured here.",
            None,
            "",
            Table(("method", "network", "data set", "ReLUs", "accuracy, %"), rows, "lllrr"),
            folded=True,
        )
    ]


def _latency_frontier_sections(sources: Sources) -> list[Section]:
    """The paper's accuracy at the paper's latency, and at ours for the same network and budget."""
    measured = {
        (row["network"], row["image_size"], row["relus"]): row["online_seconds"]
        for row in sources.results_with("network", "image_size", "relus", "online_seconds")
        if is_plain(row)
    }
    chosen = [(p, p.seconds, p.accuracy) for p in PUBLISHED if (p.network, p.data) == ("resnet18", "cifar100")]
    quoted = [(1000 * spent, accuracy) for _, spent, accuracy in chosen if spent is not None and accuracy is not None]
    ours = [
        (1000 * measured[(p.network, 32, p.relus)], accuracy)
        for p, spent, accuracy in chosen
        if accuracy is not None and spent is not None and (p.network, 32, p.relus) in measured
    ]
    if not ours:
        return []
    series = [Series("our engine, 2 CPU cores", ours, ours=True), Series("the paper, 2 GPUs (quoted)", quoted)]
    rows = [(one.name, f"{x:.0f}", f"{y:.2f}") for one in series for x, y in sorted(one.points)]
    return [
        Section(
            "frontier-latency",
            "Accuracy against latency: ResNet-18, CIFAR-100",
            "The same network and budgets twice: online latency measured here (two processes, TLS on loopback, one "
            "core each), and the latency the paper states for two GPUs. Accuracies are the paper's in both.",
            frontier(series, "online latency, ms", relus=False),
            "; ".join(f"{label}: {y} % at {x} ms" for label, x, y in rows),
            Table(("engine", "ms", "accuracy, %"), rows, "lrr"),
            folded=True,
        )
    ]


def _zoo_sections(sources: Sources) -> list[Section]:
    """Every finished model on the same real images in three ways."""
    return [
        Section(
            "zoo",
            "Models of the zoo: float, fixed point, private",
            "The same test images three ways. A private answer may differ from fixed point only where the two best "
            "classes are nearer than the rounding error; such images are counted as ties.",
            table=zoo(record.result),
        )
        for record in sources.records
        if record.name == "zoo"
    ]


def _layer_sections(sources: Sources) -> list[Section]:
    """Where the ReLUs remain, in every finished model."""
    sections = []
    for run in [run for run in sources.runs if run.layers]:
        layers = [(row["name"], int(row["kept"]), int(row["relus"])) for row in run.layers]
        kept, total = sum(row[1] for row in layers), sum(row[2] for row in layers)
        title = f"{models.title(run.settings.get('model', run.name))}, {kept:,} of {total:,} ReLUs"
        sections.append(
            Section(
                f"layers-{run.name}",
                f"Where the ReLUs remain: {run.name}",
                f"{title}: kept and replaced ReLUs of every layer, in the order of execution.",
                relus_by_layer(layers),
                "; ".join(f"{name}: {count} of {whole}" for name, count, whole in layers),
                Table(("layer", "kept", "all"), layers, "lrr"),
                folded=True,
            )
        )
        if masks := {name: mask for name, mask in run.masks().items() if mask.ndim == 3}:
            sections.append(
                Section(
                    f"maps-{run.name}",
                    f"The same as maps: {run.name}",
                    f"{title}. Rows and columns as in the image; bright places keep their ReLU in more channels. The "
                    "scale ends at the largest share and spreads small ones.",
                    relu_maps(masks),
                    "Heat maps of the share of channels that keep their ReLU, one per layer.",
                )
            )
    return sections


def _ablation_sections(sources: Sources) -> list[Section]:
    """Runs that differ in one setting only (or, for recipes, in what the recipe fills in)."""
    runs = _finished(sources)
    sections = []
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
            sections.append(
                Section(
                    f"ablation-{key.replace('_', '-')}",
                    title,
                    text,
                    grouped_bars(bars, "test accuracy, %"),
                    "; ".join(f"{row[0]}, {row[1]} ReLUs, {row[2]}: {row[3]} %" for row in rows),
                    Table(("network", "ReLUs", "variant", "accuracy, %"), rows, "lrlr"),
                    folded=True,
                )
            )
    return sections


def _same_but(run: TrainingRun, other: TrainingRun, key: str) -> bool:
    if key == "recipe":
        same = ("model", "data", "epochs", "budget", "function")
        return all(run.settings.get(name) == other.settings.get(name) for name in same)
    return run is other or differing([run, other]) == [key]


def _training_sections(sources: Sources) -> list[Section]:
    """Count, accuracy and flips by epoch, one figure per network and data set."""
    groups: dict[tuple[str, str], list[TrainingRun]] = defaultdict(list)
    for run in sources.runs:
        if run.epochs and run.is_replacement:
            groups[(str(run.settings.get("model")), str(run.settings.get("data")))].append(run)
    sections = []
    for (model, name), runs in groups.items():
        keys = [key for key in differing(runs) if key in ("recipe", "budget", *ABLATIONS, "epochs", "seed")]
        lines = [(_run_label(run, keys), run.epochs) for run in runs]
        sections.append(
            Section(
                f"training-{model}-{name}",
                f"Training: {models.title(model)} on {data.title(name)}",
                "ReLUs kept, accuracy on images held out from training, and masks that flipped, after every epoch."
                + _held_out_note(runs),
                training_curves(lines),
                "Line plots by epoch of ReLU count, held-out accuracy and mask flips.",
            )
        )
    return sections


def _held_out_note(runs: Sequence[TrainingRun]) -> str:
    """Why held-out accuracy may lie above the test's, where it does."""
    higher = [run for run in runs if run.result.get("held_out_accuracy", 0) > run.result.get("test_accuracy", 100) + 1]
    if not higher:
        return ""
    return (
        " Held-out accuracy lies above the test accuracy because the all-ReLU network that a run starts from had been "
        "trained on those images too: it ranks the epochs of a run and does not predict the test figure."
    )


def _run_label(run: TrainingRun, keys: list[str]) -> str:
    """Recipe, budget, and whatever else tells this run from the others."""
    budget = run.settings.get("budget", 0)
    kept = f"{100 * budget:g} %" if budget < 1 else f"{budget:,.0f}"
    further = [f"{key.replace('_', ' ')} {run.settings.get(key)}" for key in keys if key not in ("recipe", "budget")]
    recipe = str(run.settings.get("recipe", run.name))
    if "recipe" in keys:  # what the recipe fills in differs with it
        further = [text for text in further if not text.startswith(("penalty", "hysteresis"))]
    return ", ".join([recipe, kept, *further])
