"""How latency, bytes and key material grow with ReLUs, image size, width and batch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autorep.bench.networks import build_program, compile_random, keep_relus, random_inputs
from autorep.bench.pair import Pair
from autorep.models.resnet import ResNet
from autorep.program.ir import Activation, Program

# What is measured of every query: label -> (figure, value in that unit)
FIGURES: dict[str, str] = {
    "online, ms": "milliseconds",
    "sent per party, MB": "online_megabytes",
    "prepared ahead, MB": "offline_megabytes",
}
LINEAR = 1e-3  # largest residual of a line through bytes, as a share of their range
SHARE = 0.1  # of the ReLUs kept where ReLUs are not what varies


@dataclass(frozen=True)
class Sample:
    """One measured query; `x` is what varies."""

    x: float
    milliseconds: float
    online_megabytes: float
    offline_megabytes: float
    rounds: int


def sample(x: float, program: Program, batch: int, repeats: int) -> Sample:
    """Medians of `repeats` queries between two processes, after one that warms up."""
    images = random_inputs(program, batch)
    with Pair(program) as pair:
        queries = [pair.query(images) for _ in range(repeats + 1)][1:]
    party = queries[0].parties[0]
    seconds = statistics.median(query.seconds for query in queries)
    return Sample(x, 1e3 * seconds, party["bytes"] / 1e6, queries[0].offline_bytes / 1e6, party["rounds"])


def line(points: list[tuple[float, float]]) -> dict[str, float]:
    """Least-squares line, and its largest residual as a share of the range of y."""
    x, y = np.array(points, np.float64).T
    slope, intercept = np.polyfit(x, y, 1)
    span = float(np.ptp(y)) or 1.0
    residual = float(np.abs(y - (slope * x + intercept)).max())
    return {"slope": float(slope), "intercept": float(intercept), "largest_residual": residual / span}


def curves(name: str, samples: list[Sample]) -> list[dict[str, Any]]:
    """One curve per figure, with its fit."""
    found = []
    for label, attribute in FIGURES.items():
        points = [(sample.x, getattr(sample, attribute)) for sample in samples]
        found.append({"x": name, "y": label, "points": points, "fit": line(points)})
    return found


def verify(name: str, samples: list[Sample], bytes_linear: bool) -> list[dict[str, Any]]:
    """What must hold: the same rounds everywhere and, where claimed, bytes and key material on a line."""
    rounds = sorted({sample.rounds for sample in samples})
    checks: list[dict[str, Any]] = [
        {"check": f"rounds do not depend on {name}", "holds": len(rounds) == 1, "rounds": rounds}
    ]
    for curve in curves(name, samples) if bytes_linear else ():
        if curve["y"].endswith("MB"):
            residual = curve["fit"]["largest_residual"]
            check = f"{curve['y']} is linear in {name}"
            checks.append({"check": check, "holds": residual <= LINEAR, "largest_residual": residual})
    return checks


def measure(network: str = "resnet20", repeats: int = 5) -> dict[str, Any]:
    """All curves and checks; ReLUs, image size and batch vary on `network`, widths on a ResNet-20."""
    found: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    for name, linear, samples in _axes(network, repeats):
        found += curves(name, samples)
        checks += verify(name, samples, linear)
    return {"network": network, "share_kept": SHARE, "curves": found, "checks": checks}


def _axes(network: str, repeats: int) -> Iterator[tuple[str, bool, list[Sample]]]:
    """What varies, whether bytes must be linear in it, and the samples."""
    base = build_program(network, relus=0)
    total, size = count_relus(base), base.input.shape[-1]
    counts = [round(total * share) for share in (0.05, 0.2, 0.4, 0.6, 0.8)]
    yield "kept ReLUs", True, [sample(n, keep_relus(base, n), 1, repeats) for n in counts]
    yield "images in a batch", True, [sample(n, _some_kept(base), n, repeats) for n in (1, 2, 4, 8)]
    sizes = (size // 2, size, size * 3 // 2, size * 2)
    sized = [(s, _some_kept(build_program(network, s, 0))) for s in sizes]
    yield "pixels of the image", False, [sample(s * s, program, 1, repeats) for s, program in sized]
    yield "channels of the first stage", False, [sample(w, _wide(w), 1, repeats) for w in (8, 16, 32, 48)]


def _some_kept(program: Program) -> Program:
    return keep_relus(program, round(SHARE * count_relus(program)))


def count_relus(program: Program) -> int:
    """All ReLUs of a program, kept or replaced."""
    return sum(op.size for op in program.ops if isinstance(op, Activation) and op.function == "piecewise")


def _wide(width: int) -> Program:
    torch.manual_seed(0)
    model = ResNet((width, 2 * width, 4 * width), (3, 3, 3), 10, 3, stem_relu=True)
    return _some_kept(compile_random(model, f"resnet20 of {width}", (3, 32), 0))
