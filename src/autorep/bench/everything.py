"""The headline set, measured within minutes, or the full set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from autorep.bench import growth, kernels, link, peers, processor, train
from autorep.bench.networks import build_program
from autorep.bench.pi import measure
from autorep.bench.setting import USUAL, Setting
from autorep.settings import warn


@dataclass(frozen=True)
class Case:
    """One program, and the settings in which it is measured."""

    network: str
    image_size: int
    relus: int | None
    settings: tuple[Setting, ...] = (USUAL,)

    @property
    def name(self) -> str:
        return f"pi/{self.network}-{self.image_size}-{'all' if self.relus is None else self.relus}"


LINKS = (Setting(), Setting("lan"), Setting("wan", repeats=3))
QUICK = (
    Case("resnet18", 32, 12_900, LINKS),
    Case("resnet18", 32, None, LINKS),
    Case("resnet18", 32, 50_000),
    Case("resnet18", 32, 6_000),
)
BATCHES = tuple(Setting(batch=batch, repeats=3) for batch in (8, 32))
TOGETHER = Setting(repeats=4, preparation="two-party")
FULL = (
    Case("resnet18", 32, 12_900, (*BATCHES, Setting(threads=2), Setting(comparison="bits"), TOGETHER)),
    Case("resnet18", 32, None, (Setting(comparison="bits", repeats=3), Setting(threads=2))),
    Case("resnet18", 64, 30_000, (Setting(), TOGETHER)),
    Case("resnet18", 64, 55_000),
    Case("resnet18", 64, None, (Setting(repeats=3),)),
    Case("wide_resnet22_8", 32, 120_000, (Setting(), TOGETHER)),
    Case("wide_resnet22_8", 32, 180_000),
    Case("wide_resnet22_8", 32, None, (Setting(repeats=3),)),
    Case("wide_resnet22_8", 64, 300_000, (Setting(repeats=3),)),
    Case("efficientnet_b2", 224, 50_000, (Setting(repeats=3),)),
    Case("efficientnet_b2", 224, 500_000, (Setting(repeats=3),)),
    Case("resnet20", 32, 5_652, (Setting(), TOGETHER)),
    *(Case("resnet20", 32, relus) for relus in (18_842, None)),  # these and the next: the zoo's
    *(Case("resnet32", 32, relus) for relus in (9_093, 30_310, 90_931, None)),
)


def measure_case(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and result for each setting; the program is built once."""
    program = build_program(case.network, case.image_size, case.relus)
    cores = len(os.sched_getaffinity(0))
    for setting in case.settings:
        if setting.threads > 1 and 2 * setting.threads > cores:
            warn(f"{case.name}{setting.suffix}: left out, {cores} cores cannot give both parties {setting.threads}")
            continue
        yield case.name + setting.suffix, measure(program, setting)


def measure_all(scope: Literal["quick", "full"], only: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and result of every benchmark whose name contains `only`, one after the other."""
    started = time.monotonic()
    for case in QUICK if scope == "quick" else (*QUICK, *FULL):
        if any(only in case.name + setting.suffix for setting in case.settings):
            warn(f"{time.monotonic() - started:.0f} s: {case.name}")
            yield from measure_case(case)
    singles: dict[str, Callable[[], dict[str, Any]]] = {
        "peers": peers.measure,
        "kernels": kernels.measure,
        "cost": processor.measure,
        "link": link.measure,
    }
    if scope == "full":
        singles |= {"growth": growth.measure, "training/speed": train.measure}
    for name, run in singles.items():
        if only in name:
            warn(f"{time.monotonic() - started:.0f} s: {name}")
            yield name, run()
