"""Tables in Markdown files, written from recorded results between markers, never typed.

A marker pair `<!-- table:NAME -->` … `<!-- /table:NAME -->` is filled with the table of that name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from autorep.errors import ConfigError
from autorep.report import tables
from autorep.report.collect import Record, Sources, is_plain, origin
from autorep.settings import nearest
from autorep.table import Table

MARKED = re.compile(r"(<!-- table:([\w-]+) -->\n).*?(<!-- /table:\2 -->)", re.DOTALL)
Make = Callable[[Sources], Table | None]


def _described(
    records: Sequence[Record], describe: Callable[[list[tables.Result]], Table], note: str = ""
) -> Table | None:
    """A table of these records' results, with where they come from; none without any."""
    if not records:
        return None
    table = describe([record.result for record in records])
    return dataclasses.replace(table, note="; ".join(filter(None, [note or table.note, origin(records)])) + ".")


def _recorded(name: str, describe: Callable[[tables.Result], Table]) -> Make:
    """A table of one recorded result."""
    return lambda sources: _described(sources.named(name)[-1:], lambda results: describe(results[0]))


def _inferences(
    chosen: Callable[[tables.Result], bool], describe: Callable[[list[tables.Result]], Table], note: str
) -> Make:
    """A table of the recorded private inferences that are `chosen`."""
    return lambda sources: _described([r for r in sources.named("pi/*") if chosen(r.result)], describe, note)


def _headline(sources: Sources) -> Table | None:
    """Beside CrypTen, and what it costs all parties together where that was recorded."""
    found = [*sources.named("cost")[-1:], *sources.named("peers")[-1:]]
    return _described(found, lambda results: tables.headline(*reversed(results))) if sources.named("peers") else None


def _batches(sources: Sources) -> Table | None:
    """Loopback runs of the programs that were measured with several batches or threads."""

    def program(result: tables.Result) -> tuple[str, int, int]:
        return result["network"], result["image_size"], result["relus"]

    usual = [r for r in sources.named("pi/*") if (r.result["link"], r.result["comparison"]) == ("loopback", "dcf")]
    varied = {program(record.result) for record in usual if not is_plain(record.result)}
    return _described([record for record in usual if program(record.result) in varied], tables.batches)


def _levels(sources: Sources) -> Table | None:
    """The programs that were measured with AVX2 (in `pi-avx2/`), at that level and at the one above."""
    forced = {record.name.partition("/")[2] for record in sources.named("pi-avx2/*")}
    return _described([r for r in sources.named("pi*") if r.name.partition("/")[2] in forced], tables.phases)


def _training(sources: Sources) -> Table | None:
    runs = [run for run in sources.runs if run.logged and "relus" in run.result]
    return tables.training(runs) if runs else None


TABLES: dict[str, Make] = {
    "headline": _headline,
    "networks": _inferences(is_plain, tables.inferences, "One image, one core a party"),
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
    "headline-avx2": _recorded("peers-avx2-only", tables.headline),
    "peers-avx2": _recorded("peers-avx2", tables.headline),
    "peers-cheetah": _recorded("peers-spu-cheetah", tables.peers),
    "kernels": _recorded("kernels", tables.kernels),
    "kernels-avx2": _recorded("kernels-avx2", tables.kernels),
    "link": _recorded("link", tables.link_speed),
    "processor": _recorded("cost", tables.processor),
    "processor-avx2": _recorded("cost-avx2", tables.processor),
    "load": _recorded("cost", tables.load),
    "load-avx2": _recorded("cost-avx2", tables.load),
    "prediction": _recorded("prediction", tables.prediction),
    "prediction-avx2": _recorded("prediction-avx2", tables.prediction),
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
