"""Training speed: images a second of baseline, distillation and replacement steps, interleaved in one run.

The bar: a replacement step (masks, polynomials, auxiliary parameters, exact budget, range penalty) takes at most 1.35
times as long as a plain distillation step of the same network.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorep import models
from autorep.bench.record import record
from autorep.cli.output import emit, table
from autorep.replacement import replace_activations_
from autorep.training.distillation import FeatureTap, Teacher, distillation, feature_distance, stage_names

BAR = 1.35
KINDS = ("baseline", "distillation", "replacement")


def measure(
    networks: tuple[str, ...] = ("resnet20", "resnet18"),
    steps: int = 12,
    batch_size: int = 128,
    threads: int | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> dict[str, Any]:
    """Median step time of each kind for each network on random images; kinds take turns, so noise hits all alike."""
    if threads is not None:
        torch.set_num_threads(threads)
    rows = []
    for network in networks:
        torch.manual_seed(0)
        entry = models.spec(network)
        x = torch.randn(batch_size, entry.channels, entry.image_size, entry.image_size).contiguous(
            memory_format=torch.channels_last
        )
        y = torch.randint(10, (batch_size,))
        takes = {kind: _step(kind, network, x, y, precision == "bfloat16") for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(steps + 2):  # the first two warm up
            for kind, take in takes.items():
                started = time.perf_counter()
                take()
                if number >= 2:
                    times[kind].append(time.perf_counter() - started)
        medians = {kind: statistics.median(values) for kind, values in times.items()}
        ratios = [r / d for r, d in zip(times["replacement"], times["distillation"])]
        rows.append(
            {
                "network": network,
                "images_per_second": {kind: round(batch_size / value, 1) for kind, value in medians.items()},
                "seconds_per_step": {kind: round(value, 4) for kind, value in medians.items()},
                "replacement_over_distillation": round(statistics.median(ratios), 3),
            }
        )
    setup = {"batch_size": batch_size, "steps": steps, "threads": torch.get_num_threads(), "precision": precision}
    return {**setup, "bar": BAR, "networks": rows}


def _step(kind: str, network: str, x: Tensor, y: Tensor, half: bool) -> Callable[[], None]:
    """A function that takes one optimiser step of this kind."""
    model = models.create(network, 10)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this form
    names = stage_names(model)
    teacher = Teacher(model, names) if kind != "baseline" else None
    handle = None
    if kind == "replacement":
        handle = replace_activations_(model, x[:1])
        handle.budget = handle.total // 10
        handle.calibrate_(model, [x])
        handle.step_exact_(handle.budget)
        handle.track_range()
    tap = FeatureTap(model, names)
    own = {id(p) for p in ([*handle.aux_parameters(), *handle.coefficient_parameters()] if handle else [])}
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD([p for p in model.parameters() if id(p) not in own], lr=1e-3, momentum=0.9)
    ]
    if handle is not None:
        optimizers += [torch.optim.Adam(handle.aux_parameters()), torch.optim.Adam(handle.coefficient_parameters())]
    model.train()

    def take() -> None:
        if handle is not None and handle.budget is not None:
            handle.step_exact_(handle.budget)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(x).float()
            answers = teacher(x) if teacher is not None else None
        features = tap.take()
        loss = F.cross_entropy(logits, y)
        if answers is not None:
            loss = loss + distillation(logits, answers[0].float(), 4.0) + feature_distance(features, answers[1])
        if handle is not None:
            loss = loss + handle.range_penalty()
        loss.backward()
        nn.utils.clip_grad_norm_(optimizers[0].param_groups[0]["params"], 5.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return take


@dataclass(frozen=True)
class Train:
    """Training speed: images a second of baseline, distillation and replacement steps."""

    quick: bool = False
    """ResNet-20 only, few steps."""
    threads: int | None = None
    """CPU threads; default is torch's own choice."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of forward and backward passes."""
    save: bool = False
    """Also record the result with its provenance under bench/results."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        networks = ("resnet20",) if self.quick else ("resnet20", "resnet18")
        result = measure(networks, 3 if self.quick else 12, threads=self.threads, precision=self.precision)
        rows = [
            (
                row["network"],
                *(f"{row['images_per_second'][kind]:.0f}" for kind in KINDS),
                f"{row['replacement_over_distillation']:.2f}×",
            )
            for row in result["networks"]
        ]
        head = ("network", *(f"{kind}, images/s" for kind in KINDS), "replacement / distillation")
        text = table(rows, head, "lrrrr") + f"\n(bar: at most {BAR}×)"
        if self.save:
            text += f"\nrecorded {record('training/speed', result)}"
        emit(result, text, self.json)
        return 0 if all(row["replacement_over_distillation"] <= BAR for row in result["networks"]) else 1
