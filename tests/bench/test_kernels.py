"""`autorep bench kernels`: its rows are complete, and the documentation shows the recorded run."""

from __future__ import annotations

from pathlib import Path

from autorep.bench import kernels
from autorep.report import tables
from autorep.report.collect import collect
from autorep.report.documents import fill

ROOT = Path(__file__).parents[2]


def test_quick_measurement_covers_every_kernel() -> None:
    result = kernels.measure(quick=True)
    assert {row["kernel"] for row in result["rows"]} >= {
        "convolution", "generator", "comparison keys", "comparison", "pack", "unpack", "open", "bit planes",
        "words of planes", "AND layer", "quadratic", "ReLU share", "gather", "scatter",
    }  # fmt: skip
    assert all(row["rate"] > 0 and row["seconds"] > 0 for row in result["rows"])
    assert min(result["limits"][f"{name}_per_s"] for name in ("multiply_add_52", "copy_bytes", "read_bytes")) > 0
    text = tables.kernels(result).text()
    assert all(row["case"] in text for row in result["rows"])


def test_documentation_shows_the_recorded_run() -> None:
    sources = collect([ROOT / "bench" / "results"])
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert fill(text, sources) == text
    (recorded,) = sources.named("kernels")
    assert all(row["case"] in text for row in recorded.result["rows"])
    assert recorded.provenance["command"].startswith("autorep bench kernels")
