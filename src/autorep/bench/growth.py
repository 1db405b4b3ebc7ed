"""How latency, bytes and key material grow with ReLUs, image size, width and batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from autorep.bench import pi
from autorep.bench.networks import build_program, compile_random, keep_relus
from autorep.bench.setting import Setting
from autorep.models.resnet import ResNet
from autorep.modes import Program
from autorep.program.ir import Activation

Sample = dict[str, float]  # of one measured query: x (what varies), rounds, and the FIGURES
FIGURES = ("online, ms", "sent per party, MB", "prepared ahead, MB")
LINEAR = 1e-3  # largest residual of a line through bytes, as a share of their range
SHARE = 0.1  # of the ReLUs kept where ReLUs are not what varies


def sample(x: float, program: Program, batch: int, repeats: int) -> Sample:
    """Medians of `repeats` queries between two processes, after one that warms up."""
    found = pi.measure(program, Setting(batch=batch, repeats=repeats))
    figures = (1e3 * found["online_seconds"], found["online_bytes_per_party"] / 1e6, found["offline_bytes"] / 1e6)
    return {"x": x, "rounds": found["rounds"], **dict(zip(FIGURES, figures))}


def line(points: list[tuple[float, float]]) -> dict[str, float]:
    """Least-squares line, and its largest residual as a share of the range of y."""
    x, y = np.array(points, np.float64).T
    slope, intercept = np.polyfit(x, y, 1)
    span = float(np.ptp(y)) or 1.0
    residual = float(np.abs(y - (slope * x + intercept)).max())
    return {"slope": float(slope), "intercept": float(intercept), "largest_residual": residual / span}


def curves(name: str, samples: list[Sample]) -> list[dict[str, Any]]:
    """One curve per figure, with its fit."""
    points = {figure: [(sample["x"], sample[figure]) for sample in samples] for figure in FIGURES}
    return [{"x": name, "y": figure, "points": found, "fit": line(found)} for figure, found in points.items()]


def verify(name: str, samples: list[Sample], bytes_linear: bool) -> list[dict[str, Any]]:
    """What must hold: the same rounds everywhere and, where claimed, bytes and key material on a line."""
    rounds = sorted({sample["rounds"] for sample in samples})
    steady = {"check": f"rounds do not depend on {name}", "holds": len(rounds) == 1, "rounds": rounds}
    linear = [curve for curve in curves(name, samples) if bytes_linear and curve["y"].endswith("MB")]
    residuals = {f"{curve['y']} is linear in {name}": curve["fit"]["largest_residual"] for curve in linear}
    return [steady, *({"check": c, "holds": r <= LINEAR, "largest_residual": r} for c, r in residuals.items())]


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
