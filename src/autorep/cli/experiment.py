"""`autorep experiment`: a grid of replacements, or a measurement, from a TOML file; checks what the file claims."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from autorep.cli.output import table, told, write
from autorep.errors import ConfigError
from autorep.settings import nearest, read_toml

if TYPE_CHECKING:
    from autorep.modes import Program
    from autorep.training.experiment import Outcome

FOLDER = Path("experiments")


@dataclass(frozen=True)
class Experiment:
    """Run an experiment, write its table and figure, check the orderings it claims; exit 1 when one fails."""

    name: Annotated[str, tyro.conf.Positional]
    """A file FILE.toml, or the name of one in ./experiments."""
    out: Path = Path("runs/experiments")
    """Where runs, tables and figures go, in a folder of the experiment's name; some share their runs with another."""
    weights: Path | None = None
    """Trained all-ReLU weights of the network that the experiment names."""
    data_path: Path | None = None
    """Archive, folder or .npz file of its data set."""
    epochs: int | None = None
    """Instead of the file's own."""
    threads: int | None = None
    """CPU threads of one run; default is torch's own choice."""
    jobs: int = 1
    """Runs at a time on this machine."""
    engine: Literal["processes", "ray"] = "processes"
    """Where runs go: processes of this machine, or workers of a Ray cluster (pip install 'autorep[sweep]')."""
    run_missing: bool = True
    """Whether to run what has not finished; --no-run-missing only tells what is there."""
    measure: tuple[Literal["loopback", "lan", "wan"], ...] = ()
    """Links over which one private inference of every finished network is also measured; lan and wan are throttled."""
    record: bool = False
    """Also keep the outcome under bench/results/experiments, where `autorep report` and the documents find it."""

    def run(self) -> int:
        path = find(self.name)
        kind = read_toml(path).get("kind", "replace")
        if kind == "replace":
            return self._grid(path)
        from autorep.cli.experiment_measured import MEASURED

        if kind not in MEASURED:
            raise ConfigError(f"{path}: kind = {kind}; {nearest(kind, ['replace', *MEASURED])}")
        return MEASURED[kind](path, self.out / path.stem)

    def _grid(self, path: Path) -> int:
        from autorep.training import experiment as grids

        experiment = grids.Experiment.read(path)
        folder = self.out / experiment.name
        given = {"weights": self.weights, "data_path": self.data_path, "epochs": self.epochs, "threads": self.threads}
        overrides = {key: str(v) if isinstance(v, Path) else v for key, v in given.items() if v is not None}
        runs = experiment.runs(self.out, overrides)
        missing = [run for run in runs if grids.outcome(run) is None]
        failed: list[str] = []
        if missing and self.run_missing:
            print(f"{len(runs) - len(missing)} of {len(runs)} runs have finished, {len(missing)} to go")
            if self.engine == "ray":
                failed = grids.perform_with_ray(missing, cpus=max(self.threads or 1, 1), out=folder)
            else:
                failed = grids.perform_all(missing, path, overrides, self.out, self.jobs)
        outcomes = [
            self._timed(found, grids.compiled(run)) for run in runs if (found := grids.outcome(run)) is not None
        ]
        verdicts = [
            (claim.text, grids.holds(claim, outcomes, experiment.common_budgets(claim.series)))
            for claim in experiment.claims
        ]
        rows = grids.accuracies(experiment, outcomes)
        budgets = experiment.all_budgets
        head = ("test accuracy, %", *(f"{budget:g} ReLUs" for budget in budgets))
        text = [experiment.title, "", table(rows, head, "l" + "r" * len(budgets)), ""]
        text += [f"paper: {experiment.paper.strip()}", "", *told(verdicts), *(f"FAILED {line}" for line in failed)]
        rows_kept = [asdict(found) for found in outcomes]
        kept = {"title": experiment.title, "outcomes": rows_kept, "claims": dict(verdicts), "failed": failed}
        kept |= {"network": runs[0].settings.model, "data": runs[0].settings.data}
        write(folder, text, kept)
        if self.record:
            from autorep.bench.record import record

            print(f"wrote {record(f'experiments/{experiment.name}', kept)}", file=sys.stderr)
        if drawn := [one for one in rows_kept if one["relus"]]:
            _figure(folder / "figure.png", drawn)
        return 1 if failed or any(verdict is False for _, verdict in verdicts) else 0

    def _timed(self, found: Outcome, program: Program | None) -> Outcome:
        """With the seconds of private inference: by the cost model on every link, measured where it was asked for."""
        from autorep.bench.pi import measure
        from autorep.bench.setting import Setting
        from autorep.training.experiment import private_seconds

        if program is None:
            return found
        measured: dict[str, float] = {
            link: measure(program, Setting(link=link))["online_seconds"] for link in self.measure
        }
        return replace(found, private_seconds=private_seconds(program), measured_seconds=measured)


def find(name: str) -> Path:
    """The file of that name, or a ConfigError with the nearest one."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        known = sorted(each.stem for each in FOLDER.glob("*.toml"))
        hint = nearest(path.stem, known) if known else f"there is no folder {FOLDER} with such files here"
        raise ConfigError(f"{path}: no such experiment; {hint}")
    return path


def _figure(path: Path, outcomes: list[dict[str, Any]]) -> None:
    """Accuracy against ReLUs, as the report draws it: the best series, a line each."""
    from autorep.report.experiment_sections import MOST_LINES, by_series
    from autorep.report.figures import frontier

    lines = by_series(outcomes, lambda one: float(one["relus"]))[:MOST_LINES]
    frontier(lines, "ReLUs kept", relus=True).savefig(path, dpi=120)
