"""Tables in Markdown files, written from recorded results between markers, never typed.

A marker pair `<!-- table:NAME -->` … `<!-- /table:NAME -->` is filled with the table of that name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from autorep.errors import ConfigError
from autorep.report import tables
from autorep.report.collect import Record, Sources, origin
from autorep.report.table import Table
from autorep.settings import nearest

MARKED = re.compile(r"(<!-- table:([\w-]+) -->\n).*?(<!-- /table:\2 -->)", re.DOTALL)


def _recorded(name: str, describe: Callable[[tables.Result], Table]) -> Callable[[Sources], Table | None]:
    """A table of one recorded result."""

    def make(sources: Sources) -> Table | None:
        found = [record for record in sources.records if record.name == name]
        return _with_origin(describe(found[-1].result), found[-1:]) if found else None

    return make


def _inferences(
    chosen: Callable[[tables.Result], bool], describe: Callable[[list[tables.Result]], Table], note: str
) -> Callable[[Sources], Table | None]:
    """A table of the recorded private inferences that are `chosen`."""

    def make(sources: Sources) -> Table | None:
        found = [record for record in sources.records if record.name.startswith("pi/") and chosen(record.result)]
        if not found:
            return None
        return _with_origin(dataclasses.replace(describe([record.result for record in found]), note=note), found)

    return make


def _headline(sources: Sources) -> Table | None:
    """Beside CrypTen, and what it costs all parties together where that was recorded."""
    found = {record.name: record for record in sources.records if record.name in ("peers", "cost")}
    if "peers" not in found:
        return None
    cost = found["cost"].result if "cost" in found else None
    return _with_origin(tables.headline(found["peers"].result, cost), list(found.values()))


def _batches(sources: Sources) -> Table | None:
    """Loopback runs of the programs that were measured with several batches or threads."""

    def program(result: tables.Result) -> tuple[str, int, int]:
        return result["network"], result["image_size"], result["relus"]

    def usual(result: tables.Result) -> bool:
        return (result["link"], result["comparison"]) == ("loopback", "dcf")

    results = [record.result for record in sources.records if record.name.startswith("pi/")]
    varied = {program(result) for result in results if usual(result) and not tables.is_plain(result)}
    return _inferences(lambda result: usual(result) and program(result) in varied, tables.batches, "")(sources)


def _levels(sources: Sources) -> Table | None:
    """The programs that were measured with AVX2 forced (in `pi-avx2/`), at that level and at the processor's best."""
    forced = {record.name.partition("/")[2] for record in sources.records if record.name.startswith("pi-avx2/")}
    found = [record for record in sources.records if record.name.partition("/")[2] in forced]
    if not found:
        return None
    return _with_origin(tables.phases([record.result for record in found]), found)


def _training(sources: Sources) -> Table | None:
    runs = [run for run in sources.runs if run.logged and "relus" in run.result]
    return tables.training(runs) if runs else None


def _with_origin(table: Table, records: Sequence[Record]) -> Table:
    return dataclasses.replace(table, note="; ".join(filter(None, [table.note, origin(records)])) + ".")


TABLES: dict[str, Callable[[Sources], Table | None]] = {
    "headline": _headline,
    "networks": _inferences(tables.is_plain, tables.inferences, "One image, one core a party"),
    "levels": _levels,
    "two-party": _inferences(
        lambda result: result.get("preparation") == "two-party" and result["link"] == "loopback",
        tables.made_together,
        "Seconds are processor time of one party; one image a query, kits made four at a time, one core a party",
    ),
    "two-party-parts": _inferences(
        lambda result: "making_parts" in result and result["link"] == "loopback",
        tables.making_parts,
        "One kit, made four at a time: processor time of one party, bytes both ways; one core a party",
    ),
    "wan": _inferences(lambda result: result["link"] != "loopback", tables.links, "One image"),
    "batches": _batches,
    "growth": _recorded("growth", tables.growth),
    "training": _training,
    "speed": _recorded("training/speed", tables.speed),
    "speed-methods": _recorded("training/speed-methods", tables.method_speed),
    "zoo": _recorded("zoo", tables.zoo),
    "zoo-two-party": _recorded("zoo-two-party", tables.zoo),
    "peers-cheetah": _recorded("peers-spu-cheetah", tables.peers),
    "kernels": _recorded("kernels", tables.kernels),
    "kernels-avx2": _recorded("kernels-avx2", tables.kernels),
    "link": _recorded("link", tables.link_speed),
    "processor": _recorded("cost", tables.processor),
    "load": _recorded("cost", tables.load),
    "prediction": _recorded("prediction", tables.prediction),
}


def fill(text: str, sources: Sources) -> str:
    """The text with every marked table rendered anew; a table without results stays as it is."""

    def rendered(match: re.Match[str]) -> str:
        name = match[2]
        if name not in TABLES:
            raise ConfigError(f"marker table:{name}: there is no such table; {nearest(name, list(TABLES))}")
        table = TABLES[name](sources)
        return f"{match[1]}{table.markdown()}\n{match[3]}" if table else match[0]

    return MARKED.sub(rendered, text)
