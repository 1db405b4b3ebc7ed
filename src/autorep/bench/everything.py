"""`autorep bench all`: the headline set within minutes, or the full set; every result recorded, tables printed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autorep.bench.pi import LinkName, measure
from autorep.bench.record import RESULTS, record
from autorep.settings import warn


@dataclass(frozen=True)
class Setting:
    """How one program is measured."""

    link: LinkName = "loopback"
    batch: int = 1
    threads: int = 1
    comparison: Literal["dcf", "bits"] = "dcf"
    repeats: int = 7

    @property
    def suffix(self) -> str:
        """What distinguishes it in a result's name."""
        parts = [
            self.link if self.link != "loopback" else "",
            f"batch{self.batch}" if self.batch != 1 else "",
            f"threads{self.threads}" if self.threads != 1 else "",
            self.comparison if self.comparison != "dcf" else "",
        ]
        return "".join(f"-{part}" for part in parts if part)


@dataclass(frozen=True)
class Case:
    """One program, and the settings in which it is measured."""

    network: str
    image_size: int
    relus: int | None
    settings: tuple[Setting, ...] = field(default=(Setting(),))

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
FULL = (
    Case("resnet18", 32, 12_900, (*BATCHES, Setting(threads=2), Setting(comparison="bits"))),
    Case("resnet18", 32, None, (Setting(comparison="bits", repeats=3), Setting(threads=2))),
    Case("resnet18", 64, 30_000),
    Case("resnet18", 64, 55_000),
    Case("resnet18", 64, None, (Setting(repeats=3),)),
    Case("wide_resnet22_8", 32, 120_000),
    Case("wide_resnet22_8", 32, 180_000),
    Case("wide_resnet22_8", 32, None, (Setting(repeats=3),)),
    Case("wide_resnet22_8", 64, 300_000, (Setting(repeats=3),)),
    Case("efficientnet_b2", 224, 50_000, (Setting(repeats=3),)),
    Case("efficientnet_b2", 224, 500_000, (Setting(repeats=3),)),
    Case("resnet20", 32, 5_652),
)


def measure_case(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and result for each setting; the program is built once."""
    from autorep.bench.networks import build_program, random_inputs

    program = build_program(case.network, case.image_size, case.relus)
    cores = len(os.sched_getaffinity(0))
    for setting in case.settings:
        if setting.threads > 1 and 2 * setting.threads > cores:
            warn(f"{case.name}{setting.suffix}: left out, {cores} cores cannot give both parties {setting.threads}")
            continue
        yield (
            case.name + setting.suffix,
            measure(
                program,
                random_inputs(program, setting.batch),
                repeats=setting.repeats,
                link=setting.link,
                threads=setting.threads,
                comparison=setting.comparison,
            ),
        )


@dataclass(frozen=True)
class Everything:
    """Run the benchmarks one after the other, record each, and print the headline tables."""

    scope: Literal["quick", "full"] = "quick"
    """quick: ResNet-18 at four budgets, three links, CrypTen, kernels (minutes). full: everything (an hour or so)."""
    only: str = ""
    """Only the results whose name contains this."""
    results: Path = RESULTS
    """Folder to write the results to."""

    def run(self) -> int:
        from autorep.bench.tables import TABLES

        failed = []
        for name, result in self._measured():
            record(name, result, folder=self.results)
            if not result.get("agrees", True) or not all(c["holds"] for c in result.get("checks", ())):
                failed.append(name)
        for name in ("headline", "networks", "wan"):
            text = TABLES[name](self.results)
            print(f"\n{name}\n\n{text}" if text else f"\n{name}: not measured yet")
        for name in failed:
            warn(f"{name}: a check failed; see {self.results / name}.json")
        return 1 if failed else 0

    def _measured(self) -> Iterator[tuple[str, dict[str, Any]]]:
        from autorep.bench.growth import Growth
        from autorep.bench.kernels import measure as measure_kernels
        from autorep.bench.peers import Peers
        from autorep.bench.train import measure as measure_training

        started = time.monotonic()
        for case in self._cases():
            if any(self.only in case.name + setting.suffix for setting in case.settings):
                warn(f"{time.monotonic() - started:.0f} s: {case.name}")
                yield from measure_case(case)
        singles = {
            "peers": Peers().measure,
            "kernels-quick": lambda: measure_kernels(True),
        }
        if self.scope == "full":
            singles |= {"growth": Growth().measure, "training/speed": measure_training}
        for name, run in singles.items():
            if self.only in name:
                warn(f"{time.monotonic() - started:.0f} s: {name}")
                yield name, run()

    def _cases(self) -> tuple[Case, ...]:
        return QUICK if self.scope == "quick" else (*QUICK, *FULL)
