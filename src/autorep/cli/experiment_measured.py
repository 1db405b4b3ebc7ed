"""Experiments that need no training: how far functions are from the ReLU, and what ReLUs cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autorep.cli.named import sketch
from autorep.cli.output import table, told, write
from autorep.errors import ConfigError
from autorep.settings import read_toml

WITHIN = 0.005  # of what the file expects, as a share


def errors(path: Path, folder: Path) -> int:
    """Mean squared distance of functions from the ReLU under a normal density, against what the file expects."""
    document = _read(path, {"mean", "variance", "functions"})
    deviation = math.sqrt(document["variance"])
    rows, verdicts, found = [], [], {}
    for name, expected in document["functions"].items():
        error = squared_error(name, document["mean"], deviation)
        found[name] = error
        verdicts.append((f"{name} is {expected:g} from the ReLU", abs(error - expected) <= WITHIN * expected))
        rows.append((name, f"{expected:g}", f"{error:.4f}"))
    return _tell(document, rows, ("function", "expected", "found"), verdicts, {"errors": found}, folder)


def squared_error(name: str, mean: float, deviation: float) -> float:
    """E[(relu − function)²] for a normal input, by the trapezoidal rule over 12 deviations to each side."""
    import torch

    from autorep.replacement.activation import MaskedActivation
    from autorep.replacement.functions import function

    chosen = function(name)
    site = MaskedActivation((1,), degree=chosen.degree)
    site.set_moments_(torch.tensor([mean]), torch.tensor([deviation]))
    chosen.apply_(site)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    x = mean + deviation * z
    powers = site.power_coefficients()[:, 0]
    poly = sum(coefficient * x**i for i, coefficient in enumerate(powers))
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return float(torch.trapezoid((x.clamp_min(0) - poly).square() * density, z))


def cost(path: Path, folder: Path) -> int:
    """Estimated seconds of one private inference by ReLUs kept; fewer ReLUs must cost less."""
    from autorep.mpc import cost as model

    document = _read(path, {"model", "link", "relus"})
    rows, seconds = [], []
    for kept in document["relus"]:
        counted = model.cost(sketch(document["model"], relus=kept))
        took = counted.latency(document["link"])["seconds"]
        activations = sum(layer.online_bytes for layer in counted.layers if layer.operation == "Activation")
        seconds.append(took)
        share = activations / counted.online_bytes_per_party
        rows.append((f"{kept:,}", f"{took:.3f} s", counted.rounds, f"{counted.comparisons:,}", f"{100 * share:.0f} %"))
    falls = all(one > other for one, other in zip(seconds, seconds[1:]))
    verdicts: list[tuple[str, bool | None]] = [("fewer ReLUs take less time", falls)]
    head = ("ReLUs", f"estimated, {document['link']}", "rounds", "comparisons", "bytes of activations")
    return _tell(document, rows, head, verdicts, {"seconds": dict(zip(map(str, document["relus"]), seconds))}, folder)


def networks(path: Path, folder: Path) -> int:
    """What one private inference of different networks sends, prepares and takes."""
    from autorep import models
    from autorep.mpc import cost as model
    from autorep.program.ir import Sign

    document = _read(path, {"network"})
    rows, found = [], []
    for entry in document["network"]:
        lines = entry.get("lines", ())
        program = sketch(entry["model"], relus=entry.get("relus"), lines=lines)
        counted = model.cost(program).to_json()
        signs = sum(op.size for op in program.ops if isinstance(op, Sign))
        seconds = {link: row["seconds"] for link, row in counted["latency"].items()}
        facts = {key: counted[key] for key in ("rounds", "online_bytes_per_party", "offline_bytes", "comparisons")}
        found.append({**entry, "signs": signs, **facts, "seconds": seconds})
        units = f"{signs:,} signs" if signs else f"{program.relu_count:,} ReLUs"
        units += f", {len(lines)} layers straight" if lines else ""
        sizes = (f"{facts[key] / 1e6:.1f} MB" for key in ("online_bytes_per_party", "offline_bytes"))
        rows.append(
            (f"{models.title(entry['model'])}, {units}", facts["rounds"], *sizes, *map(_seconds, seconds.values()))
        )
    head = ("network", "rounds", "online", "prepared", *seconds)
    return _tell(document, rows, head, [], {"networks": found}, folder)


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


MEASURED: dict[str, Callable[[Path, Path], int]] = {"errors": errors, "cost": cost, "networks": networks}


def _read(path: Path, needed: set[str]) -> dict[str, Any]:
    document = read_toml(path)
    if missing := sorted({*needed, "title", "paper"} - set(document)):
        raise ConfigError(f"{path}: missing {', '.join(missing)}")
    return document


def _tell(
    document: dict[str, Any],
    rows: list[Any],
    head: tuple[str, ...],
    verdicts: list[tuple[str, bool | None]],
    record: dict[str, Any],
    folder: Path,
) -> int:
    text = [document["title"], "", table(rows, head, "l" + "r" * (len(head) - 1)), ""]
    text += [f"paper: {document['paper'].strip()}", "", *told(verdicts)]
    write(folder, text, {**record, "claims": dict(verdicts)})
    return 1 if any(verdict is False for _, verdict in verdicts) else 0
