"""A run directory: resolved settings, a log of lines, checkpoints that resume exactly, the finished model.

settings.json      every setting of the run, resolved
log.jsonl          one JSON object a line: stages, epochs, the result
checkpoint.safetensors   everything a resumed run needs; replaced atomically
best.safetensors   the model that did best on the held-out images
model.safetensors, model.json   the finished model (see `saved`)
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from autorep.errors import CheckpointError, ConfigError
from autorep.provenance import provenance
from autorep.settings import to_mapping

# What may differ between a run and its continuation without changing its result.
_FREE = {"out", "resume", "data_path", "weights", "start", "threads", "checkpoint_every", "tensorboard", "plots"}


@dataclass
class Run:
    """One run directory; processes other than the first read it but write nothing."""

    directory: Path
    writes: bool = True
    log: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] | None = None  # still to be written

    @classmethod
    def start(cls, directory: Path, settings: Any, resume: bool, writes: bool) -> Run:
        """Check that the directory is free, or that the settings fit the run that is to be resumed."""
        run = cls(Path(directory), writes)
        stored = run.directory / "settings.json"
        resolved = {key: value for key, value in to_mapping(settings).items() if key != "resume"}
        if resume:
            run._check_settings(stored, resolved)
            run.log = read_log(run.directory)
        elif stored.exists() and writes:
            raise ConfigError(
                f"{run.directory} already holds a run; continue it with --resume, or choose another --out"
            )
        run.settings = resolved
        if not resume:
            run.record_start(0)
        return run

    def record_start(self, step: int) -> None:
        """Commit, machine, versions, date and command of a run that begins, or goes on, at this step.

        Of a new run it is written with the first line that follows: a start that fails leaves nothing behind.
        """
        entry = {"event": "start", "step": step, **provenance()}
        if self.settings is None:
            self.record(**entry)
        else:
            self.log.append(entry)

    def _open(self) -> None:
        """Make the directory, write the settings and what the log holds so far."""
        if self.settings is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            _write(self.directory / "settings.json", json.dumps(self.settings, indent=2) + "\n")
            self._write_log()
            self.settings = None

    def _write_log(self) -> None:
        _write(self.directory / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in self.log))

    def record(self, **entry: Any) -> None:
        """Add one line to the log."""
        self.log.append(entry)
        if self.writes and self.settings is not None:
            self._open()
        elif self.writes:
            with (self.directory / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def save_checkpoint(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Replace the checkpoint; a crash leaves the former one whole."""
        if self.writes:
            self._open()
            save_tensors(self.directory / "checkpoint.safetensors", tensors, {"state": json.dumps(state)})

    def save_best(self, tensors: dict[str, Tensor]) -> None:
        """Replace the model that did best on the held-out images."""
        if self.writes:
            self._open()
            save_tensors(self.directory / "best.safetensors", tensors, {})

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint's tensors and state, or None when the run had not come to one."""
        path = self.directory / "checkpoint.safetensors"
        if not path.exists():
            return None
        tensors, metadata = load_tensors(path)
        if "state" not in metadata:
            raise CheckpointError(f"{path}: not a checkpoint of a run (it has no state)")
        return tensors, json.loads(metadata["state"])

    def rewind(self, lines: int) -> None:
        """Forget log lines written after the checkpoint; they will be written again."""
        self.log = self.log[:lines]
        if self.writes:
            self._open()
            self._write_log()

    def _check_settings(self, stored: Path, resolved: dict[str, Any]) -> None:
        if not stored.exists():
            raise ConfigError(f"{self.directory} holds no run to resume (no settings.json); start without --resume")
        before = json.loads(stored.read_text(encoding="utf-8"))
        changed = [key for key in resolved if key not in _FREE and before.get(key) != resolved[key]]
        if changed:
            what = ", ".join(f"{key} was {before.get(key)!r}, is {resolved[key]!r}" for key in changed)
            raise ConfigError(f"{self.directory} cannot be resumed with other settings: {what}")


def read_log(directory: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's log; a line cut short by a crash is left out."""
    path = Path(directory) / "log.jsonl"
    if not path.exists():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and their metadata as one safetensors file, replacing an older one atomically."""
    partial = path.with_suffix(".partial")
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, partial, metadata)
    os.replace(partial, path)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, or a CheckpointError that says what is wrong with it."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged or not a safetensors file ({error})") from None


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """An optimiser's state as named tensors; its rates follow from settings and step and are not kept."""
    return {
        f"{prefix}.{number}.{key}": value
        for number, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
        if torch.is_tensor(value)
    }


def load_optimizer_(optimizer: torch.optim.Optimizer, prefix: str, tensors: dict[str, Tensor]) -> None:
    """Put back what optimizer_tensors took."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(prefix + "."):
            number, key = name[len(prefix) + 1 :].split(".", 1)
            state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
