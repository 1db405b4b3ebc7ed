"""How each kind of result is described: one table, whether a command prints it, a document shows it or a page.

Every function takes what its benchmark measured (the `result` of its record) and returns its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autorep import data, models
from autorep.report.collect import TrainingRun
from autorep.report.published import paper_accuracy, paper_latencies
from autorep.table import Table, megabytes, milliseconds, percent, rate, seconds

Result = dict[str, Any]
LINKS = {"loopback": "loopback", "lan": "1 GB/s, 0.1 ms", "wan": "100 Mb/s, 40 ms"}


def inference_title(result: Result) -> str:
    """Network and image size of a private inference."""
    return f"{models.title(result['network'])}, {result['image_size']}×{result['image_size']}"


def _network(result: Result) -> str:
    """Network and ReLUs of a private inference, and how many layers are straight lines where some are."""
    lines = f", {result['lines']} layers straight" if result.get("lines") else ""
    return f"{models.title(result['network'])}, {result['relus']:,} ReLUs{lines}"


def _with_relus(result: Result) -> str:
    return f"{inference_title(result)}, {result['relus']:,} ReLUs"


def order(result: Result) -> tuple[Any, ...]:
    """Networks as in the registry, others behind them; then image size and ReLUs."""
    name = result["network"]
    place = models.names().index(name) if name in models.names() else len(models.names())
    return place, name, result["image_size"], result["relus"], result["threads"], result["batch"]


def _memory(result: Result) -> str:
    """Of a party, beyond Python's own."""
    return megabytes(result["peak_party_bytes"] - result["runtime_bytes"])


def _off(estimate: float, measured: float) -> str:
    return f"{100 * (estimate / measured - 1):+.0f} %"


def inferences(results: Iterable[Result]) -> Table:
    """Private inferences, with the paper's GPU latencies quoted beside."""
    rows = [
        (
            inference_title(result),
            f"{result['relus']:,}",
            seconds(result["online_seconds"]),
            result["rounds"],
            megabytes(result["online_bytes_per_party"]),
            f"{seconds(result['dealer_seconds'])}, {megabytes(result['offline_bytes'])}",
            _memory(result),
            seconds(paper_latencies(result["network"], result["image_size"]).get(result["relus"])),
        )
        for result in sorted(results, key=order)
    ]
    head = (
        "network", "ReLUs kept", "online", "rounds", "sent per party", "dealer", "memory of a party",
        "paper, two GPUs (quoted)",
    )  # fmt: skip
    return Table(head, rows, "lr")


def phases(results: Iterable[Result]) -> Table:
    """Where the seconds of a query are, by instruction set."""
    rows = []
    for result in sorted(results, key=lambda result: (order(result), result["simd"])):
        times = (seconds(result[f"{phase}_seconds"]) for phase in ("online", "dealer", "prepare"))
        rows.append((inference_title(result), f"{result['relus']:,}", result["simd"], *times, _memory(result)))
    head = ("network", "ReLUs kept", "level", "online", "dealer", "prepared by each party", "memory of a party")
    return Table(head, rows, "llr", "One image, loopback, one core a party")


def made_together(results: Iterable[Result]) -> Table:
    """What two servers without a dealer spend on one query: making its kits, then answering it."""
    rows = [
        (
            inference_title(result),
            f"{result['relus']:,}",
            result["simd"],
            seconds(result["making_cpu_seconds_per_party"]),
            seconds(result.get("making_estimate", {}).get("compute_seconds")),
            megabytes(result["making_bytes"]),
            megabytes(result["offline_bytes"] / 2),
            seconds(result["online_cpu_seconds_per_party"]),
            result["rounds"],
            megabytes(result["peak_party_bytes"]),
        )
        for result in sorted(results, key=order)
    ]
    head = (
        "network", "ReLUs kept", "level", "making a kit", "estimated", "sent for it, both ways", "kit of a party",
        "online", "rounds", "memory of a party, with Python",
    )  # fmt: skip
    return Table(head, rows, "lrlr")


def making_parts(results: Iterable[Result]) -> Table:
    """Where the making of a kit without a dealer goes: processor time of one party, and bytes, part by part."""
    chosen = sorted((result for result in results if "making_parts" in result), key=order)
    names = list(dict.fromkeys(name for result in chosen for name in result["making_parts"]))
    rows = []
    for result in chosen:
        parts = (result["making_parts"].get(name) for name in names)
        cells = (f"{seconds(p['cpu_seconds_per_party'])}, {megabytes(p['bytes'])}" if p else "" for p in parts)
        rows.append((_with_relus(result), result["simd"], *cells))
    return Table(("network", "level", *names), rows, "llr")


def links(results: Iterable[Result]) -> Table:
    """The estimate before the run against measured runs over throttled links."""
    rows = []
    for result in sorted(results, key=order):
        estimate, measured = result["estimate"]["seconds"], result["online_seconds"]
        times = (seconds(estimate), seconds(measured), _off(estimate, measured))
        rows.append((_network(result), LINKS[result["link"]], *times))
    return Table(("network", "link, round trip", "estimated", "measured", "estimate off by"), rows, "llr")


def batches(results: Iterable[Result]) -> Table:
    """Throughput with larger batches and more cores."""
    rows = []
    for result in sorted(results, key=order):
        online, speed = seconds(result["online_seconds"]), f"{result['images_per_second']:.1f}"
        rows.append((_network(result), result["batch"], result["threads"], online, speed))
    return Table(("network", "images in a query", "threads a party", "online", "images/s"), rows, "lr")


def operations(result: Result) -> Table:
    """Where the online time of one inference went."""
    spent = sorted(result["operations"].items(), key=lambda item: -item[1])
    total = sum(result["operations"].values())
    rows = [(name, f"{1000 * value:.2f}", percent(100 * value / total, 0)) for name, value in spent]
    return Table(("operation", "ms online", "share"), rows, "lrr")


def processor(result: Result) -> Table:
    """Processor time of one query, all parties together."""
    rows = []
    for row in result["rows"]:
        parts, served = row["cpu_seconds"], row.get("service", {})
        rows.append(
            (
                _with_relus(row),
                row["simd"],
                *(milliseconds(parts[name]) for name in ("dealer", "prepare", "compute", "exchange")),
                f"**{milliseconds(row['total_cpu_seconds'])}**",
                *(milliseconds(served.get(name)) for name in ("dealer", "party0", "party1")),
                f"**{milliseconds(served['total'])}**" if served else "",
                *(milliseconds(served.get("parts", {}).get(name)) for name in ("http", "kits", "links")),
                milliseconds(served.get("client_seconds_p50")),
            )
        )
    head = (
        "network", "level", "dealer", "prepare, both", "compute, both", "exchanges (TLS, Python), both", "engine",
        "service: dealer", "server 0", "server 1", "in all", "of it HTTP, its TLS, decisions", "kits stored", "control",
        "one client waits",
    )  # fmt: skip
    note = "Processor time of one query of one image, user and system; the last column is wall-clock"
    return Table(head, rows, "llr", note)


def prediction(result: Result) -> Table:
    """Latency predicted on this machine before any run, beside the measured one."""
    rows = []
    for row in result["rows"]:
        predicted, measured = row["predicted"], row["measured"]
        online, spent = predicted["online_seconds"], measured["online_cpu_seconds"]
        ahead = (each[f"{phase}_seconds"] for phase in ("dealer", "prepare") for each in (predicted, measured))
        times = (seconds(online), seconds(spent), _off(online, spent), seconds(measured["online_seconds"]))
        took = seconds(row["rehearsal_seconds"])
        rows.append((_with_relus(row), row["simd"], *times, *(milliseconds(value, 0) for value in ahead), took))
    head = (
        "network", "level", "online predicted", "processor time of a party", "off by", "wall-clock", "dealer predicted",
        "measured", "prepare predicted", "measured", "the prediction took",
    )  # fmt: skip
    return Table(head, rows, "llr", "One image, one core a party; dealer and prepare (of one party) are processor time")


def load(result: Result) -> Table:
    """What clients of a deployment wait, and how many are served."""
    rows = []
    for row, found in ((one, found) for one in result["rows"] for found in one.get("load", ())):
        waits = (f"{found[name]:.0f} ms" for name in ("p50_ms", "p95_ms", "p99_ms"))
        cells = (f"{found['per_second']:.1f}", *waits, milliseconds(found["cpu_seconds"], 0))
        rows.append((_with_relus(row), found["clients"], *cells, f"{found['queries_a_run']:.1f}", found["failed"]))
    head = (
        "network", "clients", "answers a second", "waited p50", "p95", "p99", "processor time an answer",
        "queries a run", "failed",
    )  # fmt: skip
    return Table(head, rows, "lr", "Dealer, both servers and all clients on the cores of one machine")


def peers(result: Result) -> Table:
    """Ours and another system doing the same work, row by row; compared by processor time where both have it."""
    theirs = {row["variant"]: row.get("cpu_seconds_per_party") for row in result["rows"] if "ratio" not in row}
    rows = []
    for row in result["rows"]:
        spent, peer = row.get("cpu_seconds_per_party"), theirs.get(row["variant"])
        ratio = peer / spent if peer and spent else row.get("ratio")
        sent, faster = megabytes(row["bytes_per_party"]), f"{ratio:.1f}×" if "ratio" in row else ""
        times = (seconds(row["seconds"]), seconds(spent))
        rows.append((row["variant"], row["system"], *times, sent, row["rounds"] or "", faster))
    compared = "less processor time by" if any(theirs.values()) else "faster by"
    head = ("variant", "system", "one image", "processor time a party", "sent per party", "rounds", compared)
    return Table(head, rows, "llr", " ".join(result.get("notes", ())))


def headline(result: Result, cost: Result | None = None) -> Table:
    """Ours against CrypTen, one row a variant; with the processor time of all parties where `cost` has it."""
    ran = [] if cost is None else [row for row in cost["rows"] if row["network"] == "resnet18"]
    spent = {(row["relus"], "dcf"): row["total_cpu_seconds"] for row in ran}
    found = {(row["variant"], row["system"]): row for row in result["rows"]}
    rows = []
    for dealt in (row for row in result["rows"] if row["system"].endswith(", with dealer")):
        variant, system = dealt["variant"], dealt["system"].removesuffix(", with dealer")
        ours, peer = found[variant, system], found[variant, "CrypTen 0.4.1"]
        rows.append(
            (
                ours["variant"] + (", compared by bits" if ours["comparison"] == "bits" else ""),
                seconds(ours["seconds"]),
                seconds(dealt["seconds"]),
                seconds(peer["seconds"]),
                f"**{ours['ratio']:.0f}×** ({dealt['ratio']:.1f}×)",
                f"{megabytes(ours['bytes_per_party'])} / {megabytes(peer['bytes_per_party'])}",
                f"{ours['rounds']} / {peer['rounds']}",
                f"{seconds(dealt['dealer_seconds'])}, {megabytes(dealt['offline_bytes'])}",
                *([] if cost is None else [seconds(spent.get((ours["relus"], ours["comparison"])))]),
            )
        )
    head = (
        "ResNet-18, 32×32", "AutoReP online", "with offline work", "CrypTen 0.4.1", "faster (with offline)",
        "sent per party", "rounds", "our dealer", *([] if cost is None else ["our processor time, all parties"]),
    )  # fmt: skip
    return Table(head, rows, "lr", f"Medians of {result['repeats']} alternating inferences of one image")


def growth(result: Result) -> Table:
    """Linear fits of cost."""
    rows = []
    for curve in result["curves"]:
        fit = curve["fit"]
        line = (f"{fit['slope']:.3g}", f"{fit['intercept']:.3g}", percent(100 * fit["largest_residual"]))
        rows.append((curve["y"], curve["x"], *line))
    return Table(("figure", "grows with", "per unit", "at zero", "largest residual"), rows, "llr")


def training(runs: Iterable[TrainingRun]) -> Table:
    """Accuracy of finished replacement runs, with the paper's quoted beside."""

    def place(run: TrainingRun) -> tuple[Any, ...]:
        settings, result = run.settings, run.result
        return settings["data"], settings["model"], result["relus"], -result["epochs"], settings["recipe"]

    rows = [
        (
            models.title(run.settings["model"]),
            data.title(run.settings["data"]),
            f"{run.result['relus']:,} of {run.result['relus_total']:,}",
            run.settings["recipe"],
            f"{run.result['epochs']} more" if _goes_on(run) else run.result["epochs"],
            percent(run.result["teacher_test_accuracy"]),
            percent(run.result["test_accuracy"]),
            _lost(run.result),
            percent(paper_accuracy(run.settings["model"], run.settings["data"], run.result["relus"])),
        )
        for run in sorted(runs, key=place)
    ]
    counts = ("network", "data", "ReLUs kept", "recipe", "epochs")
    head = (*counts, "all ReLUs", "replaced", "training images lost", "paper, 150 epochs (quoted)")
    return Table(head, rows, "llr")


def _lost(result: Result) -> str:
    """Images that leave what the program holds, and those that go far; runs of before only counted the latter."""
    if "lost" not in result:
        return "not counted"
    if "far" not in result:
        return f"not counted; {result['lost']:,} of {result['lost_of']:,} far"
    return f"{result['lost']:,} of {result['lost_of']:,}; {result['far']:,} far"


def _goes_on(run: TrainingRun) -> bool:
    """Whether the run started from a replaced network; older runs chose their first masks by a setting of that name."""
    return run.settings.get("start") not in (None, "sensitivity", "uniform", "constant")


def speed(result: Result) -> Table:
    """Images a second of every kind of training step, and the ratios that have a bar."""
    kinds = list(result["networks"][0]["images_per_second"])
    rows = [
        (
            models.title(row["network"]),
            *(f"{row['images_per_second'][kind]:.0f}" for kind in kinds),
            *(f"{row[name]:.2f}×" for name in result["bars"]),
        )
        for row in result["networks"]
    ]
    names = [name.replace("_over_", " / ").replace("_", "-") for name in (*kinds, *result["bars"])]
    bars = ", ".join(f"{name} at most {bar}×" for name, bar in zip(names[len(kinds) :], result["bars"].values()))
    return Table(("images/s", *names), rows, "lr", f"Bars: {bars}")


def method_speed(result: Result) -> Table:
    """How long a step of every method takes beside one of distillation."""
    rows = [(method, f"{ratio:.2f}×") for method, ratio in result["over_distillation"].items()]
    return Table(("method", "step / distillation step"), rows, "lr", f"Bar: at most {result['bar']}×")


def zoo(result: Result) -> Table:
    """Models on the same test images in float, in fixed point and between two parties."""
    rows = []
    for name, found in sorted(result["models"].items()):
        accuracy = (percent(found["accuracy"][mode], 1) for mode in ("float", "fixed", "private"))
        same = f"{found['same_as_fixed']} of {found['images']}"
        rows.append((name, f"{found['relus']:,}", *accuracy, same, found["ties"]))
    head = ("model", "ReLUs", "float", "fixed point", "private", "same class as fixed point", "ties")
    return Table(head, rows, "lr")


LINK_WAYS = {"link": "the link", "tls": "TLS 1.3 by Python's ssl", "tcp": "TCP, nothing encrypted"}


def link_speed(result: Result) -> Table:
    """Messages both ways at once between two processes, one core each: by the clock, and by processor time."""
    rows = []
    for row in result["rows"]:
        rates = (f"{row[name] / 1e9:.2f} GB/s" for name in ("rate", "rate_of_a_core"))
        rows.append((LINK_WAYS[row["way"]], f"{row['bytes'] / 1e6:g} MB", milliseconds(row["seconds"], 2), *rates))
    offered = "offered" if result["kernel_tls"] else "not offered"
    note = f"Medians of {result['repeats']}; TLS by {result['openssl']}; TLS inside the kernel is {offered} here"
    return Table(("way", "message", "exchange", "each way", "each way, by processor time"), rows, "lr", note)


def kernels(result: Result) -> Table:
    """Native kernels against the processor's limits in the same run, and against other libraries."""
    rows: list[Sequence[object]] = [
        (
            row["kernel"],
            row["case"],
            rate(row["rate"], row["unit"]),
            f"{1e6 * row['seconds']:,.0f} µs",
            f"{percent(100 * row['fraction_of_limit'], 0)} of {row['limited_by']}" if row["fraction_of_limit"] else "",
            f"{row['times_faster']:.1f}× {row['compared_with']}" if row["times_faster"] else "",
        )
        for row in result["rows"]
    ]
    limits = result["limits"]
    widths = [width for width in (46, 52, 64) if f"multiply_add_{width}_per_s" in limits]
    multiply = ", ".join(f"{limits[f'multiply_add_{width}_per_s'] / 1e9:.1f} G/s modulo 2^{width}" for width in widths)
    note = (
        f"One thread, {result['simd']}; limits of this processor in this run: multiply-adds {multiply}, "
        f"AES {16 * limits['aes_blocks_per_s'] / 1e9:.1f} GB/s, "
        f"copy {limits['copy_bytes_per_s'] / 1e9:.1f} GB/s, read {limits['read_bytes_per_s'] / 1e9:.1f} GB/s"
    )
    return Table(("kernel", "case", "rate", "time", "limit", "faster than"), rows, "llr", note)
