"""Commands for those who ask: predict and zoo."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from autorep.cli.output import emit, megabytes, table
from autorep.errors import ConfigError, DataError, ProtocolError
from autorep.settings import warn

if TYPE_CHECKING:
    import numpy as np

    from autorep.modes import Program
    from autorep.preprocessing import Preprocessing
    from autorep.service.answers import Prediction
    from autorep.service.client import Client


@dataclass(frozen=True)
class Predict:
    """Classify images privately: by two running servers, or all on this machine with --model.

    Images are image files, directories of them, or .npy arrays (N, C, H, W) with pixels in [0, 1] or 0 to 255 (uint8).
    """

    images: tyro.conf.Positional[tuple[Path, ...]]
    """Image files, directories or .npy arrays."""
    servers: tuple[str, ...] = ()
    """URLs of server 0 and server 1."""
    model: str | None = None
    """Instead of servers: a compiled program's directory, a saved model or a name from `autorep zoo`. Dealer, two
    servers and client then run on this machine as separate processes. A saved model without stored ranges is calibrated
    on the images."""
    ca: Path | None = None
    """Certificate authority of the servers (client/ca.pem of `autorep keys`)."""
    token_file: Path | None = None
    """File with this client's token (client/NAME.token of `autorep keys`)."""
    program: str | None = None
    """Name, part of the name, or beginning of the hash of the program to use when the servers run several."""
    top: int = 3
    """Classes to show for each image."""
    concurrency: int = 4
    """Queries in flight at the same time."""
    timeout: float = 60.0
    """Seconds to wait for one answer."""
    probes: Path | None = None
    """File of images with known answers (`autorep compile --probes`), asked among the others where no server can tell
    them apart: a server that cheats is noticed."""
    verify: float = 0.1
    """Share of the queries that are probes, at least, where there are some."""
    json: str | None = None
    """Write the result as JSON to this file (- for standard output)."""

    def run(self) -> int:
        if bool(self.servers) == bool(self.model):
            raise ConfigError(
                "predict: give either --servers URL0 URL1, or --model naming one of `autorep zoo`, a run or a program"
            )
        if self.model is not None:
            return self._run_locally(self.model)
        from autorep.service.client import Client
        from autorep.service.probes import Probes
        from autorep.service.tokens import read_secret

        token = read_secret(self.token_file)
        with Client(
            self.servers,
            token=token,
            ca=self.ca,
            program=self.program,
            timeout=self.timeout,
            concurrency=self.concurrency,
            probes=None if self.probes is None else Probes.load(self.probes),
            verify=self.verify,
        ) as client:
            described = client.description
            names, batch = load_images(self.images, described.input_shape, described.info)
            return self._ask(client, names, batch)

    def _run_locally(self, model: str) -> int:
        from autorep.service.local import LocalDeployment

        program, names, batch = local_program(model, self.images)
        warn("starting a dealer and two servers here …")
        with (
            LocalDeployment(program, prepare=min(4, len(batch))) as deployment,
            deployment.client(timeout=self.timeout, concurrency=self.concurrency) as client,
        ):
            return self._ask(client, names, batch)

    def _ask(self, client: Client, names: list[str], batch: np.ndarray) -> int:
        outcomes = client.predict(batch, top=self.top, progress=self.json != "-", errors="keep")
        failures = {name: outcome for name, outcome in zip(names, outcomes) if isinstance(outcome, ProtocolError)}
        answers = [outcome for outcome in outcomes if not isinstance(outcome, ProtocolError)]
        if not answers:
            raise next(iter(failures.values()))
        rows = [_row(name, outcome) for name, outcome in zip(names, outcomes)]
        milliseconds = 1000 * statistics.median(answer.online_seconds for answer in answers)
        facts = (
            f"{len(answers)} image{'s' * (len(answers) > 1)}; "
            f"per image: median {milliseconds:.1f} ms online, {answers[0].rounds} rounds, "
            f"{megabytes(answers[0].sent_bytes)} sent per server, {megabytes(answers[0].offline_bytes)} prepared ahead"
        )
        text = table(rows, ("image", "class", "probability", "next"), "llrl") + "\n" + facts
        lost = sum(not answer.in_range for answer in answers)
        if lost:
            text += (
                f"\n{lost} out of range: the network's numbers have outgrown what it was calibrated for, so its answer"
                " means nothing; compile with more calibration images, or train with a larger range_weight"
            )
        if self.probes is not None:
            passes = 100 * 0.9**client.verified
            text += (
                f"\n{client.verified} probes answered rightly: a server that spoils one query in ten would have passed "
                f"with a probability of {passes:.2g} %"
            )
        if failures:
            text += f"\n{len(failures)} not answered; ask for them again"
        result = {
            "program": client.description.program,
            "probes": client.verified,
            "predictions": [_plain(name, outcome) for name, outcome in zip(names, outcomes)],
        }
        emit(result, text, self.json)
        return 1 if failures else 0


@dataclass(frozen=True)
class Zoo:
    """List the finished models that ship with the package."""

    json: str | None = None
    """Write the result as JSON to this file (- for standard output)."""

    def run(self) -> int:
        from autorep.data.specs import title
        from autorep.table import percent
        from autorep.zoo import catalogue

        entries = catalogue()
        rows = []
        for name, facts in entries.items():
            relus, total = facts.get("relus"), facts.get("relus_total")
            kept = "all" if relus is None else f"{relus:,} of {total:,}"
            measured = facts.get("result") or {}
            accuracies = (percent(measured.get(key)) for key in ("test_accuracy", "teacher_test_accuracy"))
            rows.append((name, title(facts.get("data", "")), kept, *accuracies))
        head = ("name", "pictures", "ReLUs kept", "test accuracy", "with all ReLUs")
        name = next(iter(entries), "NAME")
        hints = f"ask one:   autorep predict PICTURE --model {name}\nserve one: autorep serve --local {name}"
        emit({"models": entries}, f"{table(rows, head, 'llrrr')}\n\n{hints}", self.json)
        return 0


def load_images(
    paths: Sequence[Path], shape: Sequence[int], info: Mapping[str, Any] | None = None
) -> tuple[list[str], np.ndarray]:
    """Names and a batch (N, *shape) from picture files, folders of them and .npy arrays, prepared as `info` says.

    Where the model's owner says nothing, only arrays are taken: of uint8 as pixels in [0, 1], others as they are.
    """
    import numpy as np

    from autorep.preprocessing import Preprocessing, picture_files

    names: list[str] = []
    parts: list[np.ndarray] = []
    files = picture_files(paths)
    for path, name in zip(files, _short_names(files)):
        try:
            pixels = _read(path, shape, Preprocessing.of(info or {}, shape))
        except ConfigError as error:
            raise DataError(f"{path}: {error}") from None
        names += [name] if path.suffix != ".npy" else [f"{name}[{i}]" for i in range(len(pixels))]
        parts.append(pixels)
    if not names:
        raise DataError(f"no images found in {', '.join(map(str, paths)) or 'an empty list'}")
    return names, np.concatenate(parts)


def _read(path: Path, shape: Sequence[int], stated: Preprocessing | None) -> np.ndarray:
    from autorep.preprocessing import checked_numbers, checked_pixels, no_pictures

    if path.suffix != ".npy":
        if stated is None:
            raise no_pictures(shape)
        return stated.batch(path)
    array = _read_array(path)
    return checked_pixels(array, shape) if stated or array.dtype.kind == "u" else checked_numbers(array, shape)


def _short_names(files: Sequence[Path]) -> list[str]:
    """File names, with as much of the path before them as tells them apart."""
    depth = 1
    while len({path.parts[-depth:] for path in files}) < len(set(files)):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in files]


def _read_array(path: Path) -> np.ndarray:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a numpy array ({error})") from None


def local_program(model: str, paths: Sequence[Path]) -> tuple[Program, list[str], np.ndarray]:
    """The program to run here, and the images to run it on."""
    from autorep.cli.named import stored_program

    if (program := stored_program(model)) is not None:
        return program, *load_images(paths, program.input.shape, program.info)
    from autorep.training.compiled import compile_saved
    from autorep.zoo import load as load_model

    saved = load_model(model)
    names, batch = load_images(paths, saved.input_shape, saved.info)
    warn(f"compiling {saved.title} …")
    program = compile_saved(saved, None if "ranges" in saved.info else batch)
    return program, names, batch


def _row(name: str, outcome: Prediction | ProtocolError) -> tuple[str, str, str, str]:
    if isinstance(outcome, ProtocolError):
        return name, "not answered", "", str(outcome)
    if not outcome.in_range:
        return name, "out of range", "", ""
    return name, outcome.label, _percent(outcome.probability), _others(outcome)


def _others(answer: Prediction) -> str:
    return ", ".join(f"{label} {_percent(probability)}".rstrip() for label, probability in answer.top[1:])


def _percent(probability: float | None) -> str:
    """Nothing where the servers give classes only."""
    return "" if probability is None else f"{100 * probability:.1f} %"


def _plain(name: str, answer: Prediction | ProtocolError) -> dict[str, Any]:
    if isinstance(answer, ProtocolError):
        return {"image": name, "error": str(answer)}
    return {
        "image": name,
        "label": answer.label,
        "probability": answer.probability,
        "top": [{"label": label, "probability": probability} for label, probability in answer.top],
        "in_range": answer.in_range,
        "logits": None if answer.logits is None else answer.logits.tolist(),
        "seconds": answer.seconds,
        "online_seconds": answer.online_seconds,
        "sent_bytes": answer.sent_bytes,
        "rounds": answer.rounds,
        "offline_bytes": answer.offline_bytes,
        "attempts": answer.attempts,
    }
