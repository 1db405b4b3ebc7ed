"""`autorep bench tables`: the README's tables, written from recorded results between markers, never typed.

A marker pair `<!-- table:NAME -->` … `<!-- /table:NAME -->` in the file is filled with the table of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autorep.bench.record import RESULTS, load
from autorep.errors import ConfigError
from autorep.settings import nearest

MARKED = re.compile(r"(<!-- table:([\w-]+) -->\n).*?(<!-- /table:\2 -->)", re.DOTALL)
TITLES = {
    "resnet18": "ResNet-18",
    "resnet20": "ResNet-20",
    "resnet32": "ResNet-32",
    "wide_resnet22_8": "WideResNet-22-8",
}
TITLES |= {"efficientnet_b2": "EfficientNet-B2"}
SHAPES = ("64→64", "128→256, 16x16, 3x3 stride 2, 44", "512→512, 4x4, 3x3, 44")  # convolutions worth a line
DATA = {32: "cifar100", 64: "tiny-imagenet", 224: "imagenet"}


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns align left, the others right."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows))


def _source(document: dict[str, Any], more: str = "") -> str:
    """One line below a table: where its numbers come from."""
    machine = document["machine"]
    where = f"{machine['cores']} cores of {machine['processor']}, {machine['simd']}"
    return f"\n\n<sub>{more}{where}; commit {document['commit'][:9]}, {document['date'][:10]}.</sub>"


def seconds(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3f} s" if value < 1 else f"{value:.2f} s"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB" if value < 1e8 else f"{value / 1e6:,.0f} MB"


def headline(folder: Path) -> str:
    """Ours against CrypTen at three budgets."""
    if not (folder / "peers.json").exists():
        return ""
    document = load("peers", folder)
    found = document["result"]["rows"]
    rows = []
    for ours in (row for row in found if "comparison" in row and "dealer_seconds" not in row):
        same = [row for row in found if row["variant"] == ours["variant"]]
        peer = next(row for row in same if row["system"].startswith("CrypTen"))
        dealt = next(row for row in same if row["system"] == f"{ours['system']}, with dealer")
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
            )
        )
    head = (
        "ResNet-18, 32×32", "AutoReP online", "with offline work", "CrypTen 0.4.1", "faster (with offline)",
        "sent per party", "rounds", "our dealer",
    )  # fmt: skip
    count = document["result"]["repeats"]
    return markdown(head, rows) + _source(document, f"Medians of {count} alternating inferences of one image; ")


def _private(folder: Path) -> list[dict[str, Any]]:
    """Every recorded private inference."""
    return [load(f"pi/{path.stem}", folder) for path in sorted((folder / "pi").glob("*.json"))]


def _plain(result: dict[str, Any]) -> bool:
    """One image, loopback, one core a party, the default comparison."""
    return (result["link"], result["batch"], result["threads"], result["comparison"]) == ("loopback", 1, 1, "dcf")


def _order(document: dict[str, Any]) -> tuple[Any, ...]:
    result = document["result"]
    return (list(TITLES).index(result["network"]), result["image_size"], result["relus"])


def networks(folder: Path) -> str:
    """The paper's networks, with the paper's GPU latencies quoted beside."""
    from autorep.report.published import PUBLISHED

    documents = sorted((d for d in _private(folder) if _plain(d["result"])), key=_order)
    quoted = {(p.network, p.data, p.relus): p.seconds for p in PUBLISHED if p.seconds is not None}
    rows = []
    for result in (document["result"] for document in documents):
        paper = quoted.get((result["network"], DATA.get(result["image_size"], ""), result["relus"]))
        rows.append(
            (
                f"{TITLES[result['network']]}, {result['image_size']}×{result['image_size']}",
                f"{result['relus']:,}",
                seconds(result["online_seconds"]),
                result["rounds"],
                megabytes(result["online_bytes_per_party"]),
                f"{seconds(result['dealer_seconds'])}, {megabytes(result['offline_bytes'])}",
                megabytes(result["peak_party_bytes"] - result["runtime_bytes"]),
                seconds(paper) if paper else "",
            )
        )
    head = (
        "network", "ReLUs kept", "online", "rounds", "sent per party", "dealer", "memory of a party",
        "paper, two GPUs (quoted)",
    )  # fmt: skip
    return markdown(head, rows) + _source(documents[-1], "One image, one core a party; ") if rows else ""


def wan(folder: Path) -> str:
    """The estimate before the run against measured runs over throttled links."""
    names = {"lan": "1 GB/s, 0.1 ms", "wan": "100 Mb/s, 40 ms"}
    documents = sorted((d for d in _private(folder) if d["result"]["link"] != "loopback"), key=_order)
    rows = [
        (
            f"{TITLES[result['network']]}, {result['relus']:,} ReLUs",
            names[result["link"]],
            seconds(result["estimate"]["seconds"]),
            seconds(result["online_seconds"]),
            f"{100 * (result['estimate']['seconds'] / result['online_seconds'] - 1):+.0f} %",
        )
        for result in (document["result"] for document in documents)
    ]
    head = ("network", "link, round trip", "estimated", "measured", "estimate off by")
    return markdown(head, rows, left=2) + _source(documents[-1], "One image; ") if rows else ""


def batches(folder: Path) -> str:
    """Throughput with larger batches and more cores."""
    documents = [
        d for d in _private(folder) if d["result"]["link"] == "loopback" and d["result"]["comparison"] == "dcf"
    ]
    varied = {(d["result"]["network"], d["result"]["relus"]) for d in documents if not _plain(d["result"])}
    documents = [d for d in documents if (d["result"]["network"], d["result"]["relus"]) in varied]
    documents.sort(key=lambda d: (*_order(d), d["result"]["threads"], d["result"]["batch"]))
    rows = [
        (
            f"{TITLES[result['network']]}, {result['relus']:,} ReLUs",
            result["batch"],
            result["threads"],
            seconds(result["online_seconds"]),
            f"{result['images_per_second']:.1f}",
        )
        for result in (document["result"] for document in documents)
    ]
    head = ("network", "images in a query", "threads a party", "online", "images/s")
    return markdown(head, rows) + _source(documents[-1]) if rows else ""


def growth(folder: Path) -> str:
    """Linear fits of cost."""
    if not (folder / "growth.json").exists():
        return ""
    document = load("growth", folder)
    rows = [
        (
            curve["y"],
            curve["x"],
            f"{curve['fit']['slope']:.3g}",
            f"{curve['fit']['intercept']:.3g}",
            f"{100 * curve['fit']['largest_residual']:.1f} %",
        )
        for curve in document["result"]["curves"]
    ]
    head = ("figure", "grows with", "per unit", "at zero", "largest residual")
    return markdown(head, rows, left=2) + _source(document)


def training(folder: Path) -> str:
    """Accuracy of finished replacement runs, with the paper's quoted beside."""
    from autorep.report.collect import TrainingRun, collect
    from autorep.report.published import PUBLISHED

    if not (folder / "training").is_dir():
        return ""
    quoted = {(p.network, p.data, p.relus): p.accuracy for p in PUBLISHED if p.method.startswith("AutoReP")}
    rows = []
    runs = [run for run in collect([folder / "training"]).runs if "relus" in run.result]

    def order(run: TrainingRun) -> tuple[Any, ...]:
        settings, result = run.settings, run.result
        return settings["data"], settings["model"], result["relus"], -result["epochs"], settings["recipe"]

    for run in sorted(runs, key=order):
        network, data, result = run.settings["model"], run.settings["data"], run.result
        paper = quoted.get((network, data, result["relus"]))
        rows.append(
            (
                TITLES.get(network, network),
                data,
                f"{result['relus']:,} of {result['relus_total']:,}",
                run.settings["recipe"],
                result["epochs"],
                f"{result['teacher_test_accuracy']:.2f} %",
                f"{result['test_accuracy']:.2f} %",
                f"{paper:.2f} %" if paper else "",
            )
        )
    head = ("network", "data", "ReLUs kept", "recipe", "epochs", "all ReLUs", "replaced", "paper, 150 epochs (quoted)")
    return markdown(head, rows, left=2) if rows else ""


def speed(folder: Path) -> str:
    """Images a second of every kind of training step."""
    if not (folder / "training" / "speed.json").exists():
        return ""
    from autorep.bench.train import heading, row_of

    document = load("training/speed", folder)
    rows = [row_of(row) for row in document["result"]["networks"]]
    return markdown(heading(), rows) + _source(document)


def zoo(folder: Path) -> str:
    """Zoo models on the same test images in float, in fixed point and between two parties."""
    if not (folder / "zoo.json").exists():
        return ""
    document = load("zoo", folder)
    rows = [
        (
            name,
            f"{result['relus']:,}",
            *(f"{result['accuracy'][mode]:.1f} %" for mode in ("float", "fixed", "private")),
            f"{result['same_as_fixed']} of {result['images']}",
            result["ties"],
        )
        for name, result in sorted(document["result"]["models"].items())
    ]
    head = ("model", "ReLUs", "float", "fixed point", "private", "same class as fixed point", "ties")
    return markdown(head, rows) + _source(document)


def kernels(folder: Path) -> str:
    """Native kernels against their limits."""
    if not (folder / "kernels.json").exists():
        return ""
    document = load("kernels", folder)
    rows = [
        (
            row["kernel"],
            row["case"],
            _rate(row["rate"], row["unit"]),
            f"{100 * row['fraction_of_limit']:.0f} % of {row['limited_by']}" if row["fraction_of_limit"] else "",
            f"{row['times_faster']:.1f}× {row['compared_with']}" if row["times_faster"] else "",
        )
        for row in document["result"]["rows"]
        if row["kernel"] != "convolution" or row["case"].startswith(SHAPES)
    ]
    return markdown(("kernel", "case", "rate, one core", "limit", "faster than"), rows, left=2) + _source(document)


def _rate(rate: float, unit: str) -> str:
    return f"{rate / 1e9:.1f} G {unit}/s" if rate >= 1e9 else f"{rate / 1e6:.1f} M {unit}/s"


TABLES: dict[str, Callable[[Path], str]] = {
    "headline": headline,
    "networks": networks,
    "wan": wan,
    "batches": batches,
    "growth": growth,
    "training": training,
    "speed": speed,
    "zoo": zoo,
    "kernels": kernels,
}


def fill(text: str, folder: Path) -> str:
    """The text with every marked table rendered anew; a table without results stays as it is."""

    def rendered(match: re.Match[str]) -> str:
        name = match[2]
        if name not in TABLES:
            raise ConfigError(f"marker table:{name}: there is no such table; {nearest(name, list(TABLES))}")
        table = TABLES[name](folder)
        return f"{match[1]}{table}\n{match[3]}" if table else match[0]

    return MARKED.sub(rendered, text)


@dataclass(frozen=True)
class Tables:
    """Fill the marked tables of a Markdown file from the recorded results."""

    file: Path = Path("README.md")
    """Markdown file with `<!-- table:NAME -->` markers."""
    results: Path = RESULTS
    """Folder of recorded results."""
    check: bool = False
    """Change nothing; fail when the tables are not those of the results."""

    def run(self) -> int:
        try:
            text = self.file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{self.file}: no such file; run from the top of a source checkout") from None
        filled = fill(text, self.results)
        if self.check:
            return 0 if filled == text else 1
        self.file.write_text(filled, encoding="utf-8")
        print(f"{self.file}: {len(MARKED.findall(filled))} tables written from {self.results}")
        return 0
