"""An experiment: a grid of replacements from a TOML file, what its runs gave, and the orderings it claims of them.

title, paper, result     what it asks, what the paper had, what came out here ("not run yet" until it has run)
runs_of                  an experiment whose runs these are too, where series, budget and seed agree (or none)
[base]                   settings of `autorep replace` for all runs; budgets and seeds span the grid with the series
[[series]]               name, recipe (or none), budgets and seeds of its own (or none), settings in which it differs
[[claim]]                kind, series, text: see Claim

Every run has a directory of its own, <out>/<experiment>/<series>-<budget>-<seed>. One with a result is skipped, one
that was interrupted goes on where it stopped, and one of other settings is refused, whichever experiment it is of.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autorep.errors import AutorepError, ConfigError
from autorep.modes import Program
from autorep.mpc.cost import LINKS, cost
from autorep.report.page import slug
from autorep.settings import from_mapping, read_toml
from autorep.training.compiled import compile_saved
from autorep.training.runs import Run
from autorep.training.saved import load_model
from autorep.training.settings import RECIPES, ReplaceSettings

ERROR_LINES = 3  # of a failed run that are shown


@dataclass(frozen=True)
class Claim:
    """What an experiment says about its results.

    kind is one of
        order    at every budget the named series stand in this order of mean test accuracy, the best first
        gap      the lead of the first of two series over the second grows as the budget falls
        flips    masks flip less often from each named series to the next
        spread   mean test accuracies of the named series lie within `points` of each other at every budget
        budget   every run of the named series comes within 1 % of all ReLUs of its budget before a final cut
        faster   at every budget the first of two series takes less private time on `link` than the second, by the cost
                 model, and is no less accurate
    """

    kind: Literal["order", "gap", "flips", "spread", "budget", "faster"]
    series: tuple[str, ...]
    text: str
    points: float = 0.0
    link: Literal["loopback", "lan", "wan"] = "wan"


@dataclass(frozen=True)
class Planned:
    """One run of the grid."""

    series: str
    budget: float
    seed: int
    settings: ReplaceSettings


@dataclass(frozen=True)
class Outcome:
    """What a finished run gave; `flips` over the whole run, `excess` ReLUs above the budget cut at the end.

    private_seconds: of one private inference by link, by the cost model; empty where the network does not compile.
    measured_seconds: the same over throttled links, where it was asked for.
    """

    series: str
    budget: float
    seed: int
    accuracy: float
    relus: int
    relus_total: int
    flips: int
    excess: int
    epochs: int = 0
    private_seconds: Mapping[str, float] = field(default_factory=dict)
    measured_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A grid and its claims, as read from a file."""

    name: str
    title: str
    paper: str
    result: str
    series: Mapping[str, Mapping[str, Any]]
    budgets: tuple[float, ...]
    seeds: tuple[int, ...]
    base: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    runs_of: str = ""

    @classmethod
    def read(cls, path: Path) -> Experiment:
        """From a TOML file; a ConfigError names what is wrong."""
        document = read_toml(path)
        known = {"title", "paper", "result", "runs_of", "base", "budgets", "seeds", "series", "claim"}
        _refuse_unknown(document, known, path)
        missing = [key for key in ("title", "paper", "result", "budgets", "series") if key not in document]
        if missing:
            raise ConfigError(f"{path}: missing {', '.join(missing)}")
        claims = tuple(
            from_mapping(Claim, claim, f"{path}: claim {i + 1}") for i, claim in enumerate(document.get("claim", []))
        )
        series = {entry["name"]: {k: v for k, v in entry.items() if k != "name"} for entry in document["series"]}
        for claim in claims:
            if unknown := [name for name in claim.series if name not in series]:
                raise ConfigError(f"{path}: claim {claim.text!r} names no such series: {', '.join(unknown)}")
        experiment = cls(
            path.stem,
            document["title"],
            document["paper"],
            document["result"],
            series,
            tuple(document["budgets"]),
            tuple(document.get("seeds", (0,))),
            document.get("base", {}),
            claims,
            document.get("runs_of", ""),
        )
        for claim in claims:
            if not experiment.common_budgets(claim.series):
                raise ConfigError(f"{path}: claim {claim.text!r} compares series that have no budget in common")
        return experiment

    def budgets_of(self, series: str) -> tuple[float, ...]:
        """The series' own budgets, where a method or network has others than the grid."""
        return tuple(self.series[series].get("budgets", self.budgets))

    @property
    def all_budgets(self) -> tuple[float, ...]:
        """Those of the grid and of every series, in order."""
        return tuple(sorted({budget for name in self.series for budget in self.budgets_of(name)}))

    def common_budgets(self, names: Sequence[str]) -> tuple[float, ...]:
        """Budgets at which all these series have runs."""
        return tuple(b for b in self.all_budgets if all(b in self.budgets_of(name) for name in names))

    def runs(self, out: Path, overrides: Mapping[str, Any]) -> list[Planned]:
        """Every run of the grid below `out`; `overrides` (data path, weights, threads, …) come on top of everything.

        All series at the least budget come first, so that what an interrupted grid has can be compared.
        """
        planned = []
        for name in self.series:
            own = {key: value for key, value in self.series[name].items() if key not in ("budgets", "seeds")}
            for budget in self.budgets_of(name):
                for seed in self.series[name].get("seeds", self.seeds):
                    recipe = str(own.get("recipe", "autorep"))
                    if recipe not in RECIPES:
                        raise ConfigError(f"{self.name}: series {name!r} has no such recipe {recipe!r}")
                    place = out / (self.runs_of or self.name) / f"{slug(name)}-{budget:g}-{seed}"
                    values = {**RECIPES[recipe], **self.base, **own, "budget": budget, "seed": seed}
                    values |= {**overrides, "out": str(place)}
                    settings = from_mapping(ReplaceSettings, values, f"{self.name}: series {name!r}")
                    planned.append(Planned(name, budget, seed, settings))
        return sorted(planned, key=lambda run: (run.seed, run.budget))


def outcome(run: Planned) -> Outcome | None:
    """What this run gave, if it has finished; a ConfigError when its directory holds a run of other settings."""
    if not (run.settings.out / "settings.json").exists():
        return None
    log = Run.start(run.settings.out, run.settings, resume=True, writes=False).log
    results = [entry for entry in log if entry["event"] == "result"]
    if not results:
        return None
    epochs = [entry for entry in log if entry["event"] == "epoch"]
    last = results[-1]
    excess = epochs[-1]["relus"] - last["relus"] if epochs else 0
    flips = sum(entry.get("flips", 0) for entry in epochs)
    return Outcome(
        run.series,
        run.budget,
        run.seed,
        last["test_accuracy"],
        last["relus"],
        last["relus_total"],
        flips,
        excess,
        run.settings.epochs,
    )


def compiled(run: Planned) -> Program | None:
    """The finished network's program; None where it does not compile, for instance because polynomials run away."""
    try:
        return compile_saved(load_model(run.settings.out))
    except AutorepError:
        return None


def private_seconds(program: Program) -> dict[str, float]:
    """What one private inference takes on every link, by the cost model."""
    counted = cost(program)
    return {link: counted.latency(link)["seconds"] for link in LINKS}


def perform(run: Planned) -> None:
    """Run it here, from its last checkpoint where it has one."""
    from autorep.training.recipe import replace

    begun = (run.settings.out / "settings.json").exists()
    replace(dataclasses.replace(run.settings, resume=begun))


def perform_all(runs: Sequence[Planned], source: Path, overrides: Mapping[str, Any], out: Path, jobs: int) -> list[str]:
    """All runs as processes of this machine, `jobs` at a time; returns what went wrong, a text a run."""

    def one(run: Planned) -> str | None:
        order = json.dumps([str(source), str(out), run.settings.out.name, dict(overrides)])
        command = [sys.executable, "-m", "autorep.training.experiment", order]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        return f"{run.settings.out.name}: " + " | ".join(done.stderr.strip().splitlines()[-ERROR_LINES:])

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return [text for text in pool.map(one, runs) if text is not None]


def perform_with_ray(runs: Sequence[Planned], cpus: float, out: Path) -> list[str]:
    """All runs by Ray Tune, on the cluster that is running or one on this machine; returns what went wrong.

    Tune's own records go to <out>/ray.

    Run directories, weights and data must lie where every worker finds them under the same path.
    """
    import ray
    from ray import tune

    def trial(config: dict[str, Any]) -> dict[str, Any]:
        perform(runs[config["run"]])
        return {"done": 1}

    if not ray.is_initialized():
        ray.init(logging_level=logging.WARNING, include_dashboard=False)
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": cpus}),
        param_space={"run": tune.grid_search(list(range(len(runs))))},
        run_config=tune.RunConfig(name="ray", storage_path=str(out.resolve()), verbose=0),
    )
    return [str(error).strip().splitlines()[-1] for error in tuner.fit().errors]


def holds(claim: Claim, outcomes: Sequence[Outcome], budgets: Sequence[float]) -> bool | None:
    """Whether a claim is true of these outcomes; None while a series it names has no run at some of these budgets."""
    means: dict[tuple[str, float], float] = {}
    took: dict[tuple[str, float], float] = {}
    for name in claim.series:
        for budget in budgets:
            found = _of(outcomes, name, budget)
            if not found:
                return None
            means[name, budget] = statistics.mean(one.accuracy for one in found)
            took[name, budget] = statistics.mean(one.private_seconds.get(claim.link, math.nan) for one in found)

    def faster(budget: float) -> bool:
        first, second = ((name, budget) for name in claim.series)
        return took[first] < took[second] and means[first] >= means[second]

    checks: dict[str, Callable[[], bool]] = {
        "order": lambda: all(_falling([means[name, budget] for name in claim.series]) for budget in budgets),
        "gap": lambda: _falling(
            [means[claim.series[0], budget] - means[claim.series[1], budget] for budget in sorted(budgets)]
        ),
        "flips": lambda: _falling([sum(o.flips for o in outcomes if o.series == name) for name in claim.series]),
        "spread": lambda: all(_spread([means[n, budget] for n in claim.series]) <= claim.points for budget in budgets),
        "faster": lambda: all(map(faster, budgets)),
        "budget": lambda: all(abs(o.excess) <= 0.01 * o.relus_total for o in outcomes if o.series in claim.series),
    }
    return checks[claim.kind]()


def accuracies(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row a series: its name, then mean accuracy and half the spread over the seeds at every budget."""
    rows = []
    for name in experiment.series:
        cells = []
        for budget in experiment.all_budgets:
            found = [one.accuracy for one in _of(outcomes, name, budget)]
            missing = "not run yet" if budget in experiment.budgets_of(name) else ""
            text = f"{statistics.mean(found):.2f}" if found else missing
            cells.append(f"{text} ± {_spread(found) / 2:.2f}" if len(found) > 1 else text)
        rows.append((name, *cells))
    return rows


def _of(outcomes: Sequence[Outcome], series: str, budget: float) -> list[Outcome]:
    return [one for one in outcomes if (one.series, one.budget) == (series, budget)]


def _falling(values: Sequence[float]) -> bool:
    return all(one > other for one, other in zip(values, values[1:]))


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _refuse_unknown(document: Mapping[str, Any], known: set[str], path: Path) -> None:
    if unknown := sorted(set(document) - known):
        raise ConfigError(f"{path}: unknown key {', '.join(unknown)}; valid: {', '.join(sorted(known))}")


def _worker(order: str) -> None:
    """What a process of `perform_all` does: one run of the grid."""
    source, out, name, overrides = json.loads(order)
    runs = Experiment.read(Path(source)).runs(Path(out), overrides)
    perform(next(run for run in runs if run.settings.out.name == name))


if __name__ == "__main__":
    _worker(sys.argv[1])
