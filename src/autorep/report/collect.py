"""What a report is made from: run directories and recorded benchmark results, found under any set of paths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorep.errors import CheckpointError, DataError

if TYPE_CHECKING:
    import numpy as np

# Settings that do not make two runs different experiments.
_INCIDENTAL = {"out", "resume", "data_path", "weights", "threads", "checkpoint_every", "tensorboard", "plots", "device"}


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One run directory of `autorep train` or `autorep replace`, its log alone, or a finished model without its run.

    Attributes:
        settings: resolved, as the run saved them; of a model alone, its network and data set.
        epochs: its log's records of that kind; result: the last record, empty while the run goes on.
        layers: kept and all ReLUs by layer, when the finished model is there.
        model: the finished model's description (JSON, tensors beside it), where there is one.
        logged: whether the run itself is here.
    """

    name: str
    settings: dict[str, Any]
    epochs: list[dict[str, Any]]
    result: dict[str, Any]
    layers: list[dict[str, Any]]
    model: Path
    logged: bool = True

    @property
    def is_replacement(self) -> bool:
        return "relus" in self.result or any("relus" in epoch for epoch in self.epochs)

    @property
    def above_test(self) -> bool:
        return bool(self.result.get("held_out_accuracy", 0) > self.result.get("test_accuracy", 100) + 1)

    def masks(self) -> dict[str, np.ndarray]:
        """Layer -> boolean array (channels, rows, columns) of the kept ReLUs; empty without a finished model."""
        import numpy as np
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.model.with_suffix(".safetensors")
        if not path.exists() or not self.layers:
            return {}
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: damaged or not a safetensors file ({error})") from None
        masks = {}
        for layer in self.layers:
            bits = np.unpackbits(tensors[f"{layer['name']}.mask"], bitorder="little")
            masks[layer["name"]] = bits[: layer["relus"]].reshape(layer["shape"]).astype(bool)
        return masks


@dataclass(frozen=True)
class Record:
    """One file of recorded results: its provenance and its figures."""

    name: str
    provenance: dict[str, Any]
    result: dict[str, Any]


@dataclass(frozen=True)
class Sources:
    """Everything found, in the order of its paths."""

    runs: list[TrainingRun] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def named(self, pattern: str) -> list[Record]:
        """Records of this name; with `*` for any part of it."""
        return [record for record in self.records if fnmatch(record.name, pattern)]

    def inferences(self) -> list[dict[str, Any]]:
        """Plain private inferences at the processor's own level; `pi-LEVEL/` has those at a level that was forced."""
        results = [record.result for record in self.records if not fnmatch(record.name, "pi-*")]
        return [result for result in results if "operations" in result and is_plain(result)]


def is_plain(result: dict[str, Any]) -> bool:
    """One image over loopback, one core a party, the default comparison."""
    return (result["link"], result["batch"], result["threads"], result["comparison"]) == ("loopback", 1, 1, "dcf")


def collect(paths: Sequence[Path]) -> Sources:
    """Read run directories, result files, and directories that hold such; anything else is refused by name."""
    sources = Sources()
    for path in paths:
        before = len(sources.runs) + len(sources.records)
        if not path.exists():
            raise DataError(f"{path}: no such file or directory; give run directories or recorded results")
        _collect(path, sources)
        if len(sources.runs) + len(sources.records) == before:
            raise DataError(f"{path}: no run (log.jsonl), no saved model and no recorded result is here")
    return sources


def _collect(path: Path, sources: Sources) -> None:
    if path.is_file() and path.suffix == ".json":
        document = _read_json(path)
        if isinstance(document, dict) and "result" in document and "format" not in document:
            known = {key: value for key, value in document.items() if key not in ("name", "result")}
            sources.records.append(Record(str(document.get("name", path.stem)), known, document["result"]))
        elif isinstance(document, dict) and "format" in document and "layers" in document:
            sources.runs.append(_saved_model(path, document))
    elif path.is_file() and path.suffix == ".jsonl":
        sources.runs.append(_read_run(path.parent, path))
    elif path.is_dir() and (path / "log.jsonl").exists():
        sources.runs.append(_read_run(path, path / "log.jsonl"))
    elif path.is_dir():
        for entry in sorted(path.iterdir()):
            if entry.is_dir() or entry.suffix in (".json", ".jsonl"):
                _collect(entry, sources)


def _read_run(directory: Path, log: Path) -> TrainingRun:
    entries = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break  # cut short by a crash
    own = log.stem == "log"
    name = directory.name if own else log.stem
    settings = directory / ("settings.json" if own else f"{log.stem}.settings.json")
    model = directory / ("model.json" if own else f"{log.stem}.json")
    description = _read_json(model) if model.exists() else {}
    epochs, results = ([entry for entry in entries if entry.get("event") == kind] for kind in ("epoch", "result"))
    known = _read_json(settings) if settings.exists() else {}
    return TrainingRun(name, known, epochs, results[-1] if results else {}, description.get("layers", []), model)


def _saved_model(path: Path, document: dict[str, Any]) -> TrainingRun:
    settings = {key: document.get(key) for key in ("model", "data")}
    return TrainingRun(path.stem, settings, [], document.get("result", {}), document["layers"], path, logged=False)


def differing(runs: Iterable[TrainingRun]) -> list[str]:
    """Settings in which these runs differ, incidental ones aside."""
    runs = list(runs)
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in _INCIDENTAL)
    return [key for key in keys if len({json.dumps(run.settings.get(key)) for run in runs}) > 1]


_BUSY = 4.0  # processes that want each core while something is measured


def origin(records: Iterable[Record]) -> str:
    """Machines, commits and dates that recorded results come from, in one line."""
    machines: dict[str, None] = {}
    commits: dict[str, None] = {}
    dates, busiest = set(), 0.0
    for known in (record.provenance for record in records if {"machine", "commit", "date"} <= record.provenance.keys()):
        machine = known["machine"]
        simd = f", {machine['simd']}" if "simd" in machine else ""
        machines[f"{machine.get('cores', '?')} cores of {machine.get('processor', '?')}{simd}"] = None
        busiest = max(busiest, machine.get("load_average", 0.0) / machine.get("cores", 1))
        commits[known["commit"][:9]] = None
        dates.add(known["date"][:10])
    if not machines:
        return ""
    when = " to ".join(dict.fromkeys((min(dates), max(dates))))
    busy = ", busy with other work too, so that wall-clock says little" if busiest > _BUSY else ""
    return f"{' and '.join(machines)}{busy}; commit{'s' * (len(commits) > 1)} {', '.join(commits)}, {when}"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None
