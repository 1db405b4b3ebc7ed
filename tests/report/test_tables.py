"""Tables of documents from recorded results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autorep.bench.record import record
from autorep.cli.recorded import DOCUMENTS, Tables
from autorep.errors import ConfigError
from autorep.report.collect import Sources, collect
from autorep.report.documents import TABLES, fill


def table(name: str, results: Path) -> str:
    """A document's table in Markdown; empty where there is none."""
    found = TABLES[name](collect([results]))
    return found.markdown() if found else ""


def private(link: str = "loopback", batch: int = 1, online: float = 0.06) -> dict[str, Any]:
    return {
        "network": "resnet18", "image_size": 32, "relus": 12_900, "link": link, "batch": batch, "threads": 1,
        "comparison": "dcf", "online_seconds": online, "images_per_second": batch / online, "rounds": 34,
        "online_bytes_per_party": 7_150_000, "dealer_seconds": 0.2, "offline_bytes": 48_100_000,
        "peak_party_bytes": 450_000_000, "runtime_bytes": 50_000_000, "estimate": {"seconds": online * 1.1},
    }  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    record("pi/one", private(), folder=tmp_path)
    record("pi/two", private("wan", online=1.3), folder=tmp_path)
    record("pi/three", private(batch=8, online=0.3), folder=tmp_path)
    common = {"variant": "12,900 ReLUs", "relus": 12_900, "bytes_per_party": 7e6, "rounds": 34}
    rows = [
        {"system": "AutoReP", "seconds": 0.06, "ratio": 23.3, "comparison": "dcf", **common},
        {"system": "AutoReP, with dealer", "seconds": 0.3, "ratio": 4.6, "dealer_seconds": 0.2, "offline_bytes": 4e7}
        | common
        | {"comparison": "dcf"},
        {"system": "CrypTen 0.4.1", "seconds": 1.4, **common},
    ]
    record("peers", {"rows": rows, "repeats": 7}, folder=tmp_path)
    return tmp_path


def test_the_headline_shows_both_systems_and_the_ratio(results: Path) -> None:
    text = table("headline", results)
    assert "**23×** (4.6×)" in text
    assert "1.40 s" in text
    assert "7 alternating" in text


def test_the_headline_shows_what_all_parties_spend_where_that_is_recorded(results: Path) -> None:
    assert "processor" not in table("headline", results)
    row = {"network": "resnet18", "image_size": 32, "relus": 12_900, "simd": "avx512", "total_cpu_seconds": 0.25}
    record("cost", {"rows": [row | {"cpu_seconds": {}}]}, folder=results)
    text = table("headline", results)
    assert "our processor time, all parties" in text
    assert text.splitlines()[2].endswith("| 0.250 s |")


def test_networks_quote_the_papers_latency_beside_plain_runs_only(results: Path) -> None:
    text = table("networks", results)
    assert text.count("ResNet-18") == 1
    assert "0.170 s" in text
    assert "quoted" in text


def test_kits_made_without_a_dealer_have_a_table_of_their_own(results: Path) -> None:
    made = {"comparison": "bits", "preparation": "two-party", "making_cpu_seconds_per_party": 2.25, "rounds": 130}
    made |= {"making_bytes": 185_400_000, "offline_bytes": 33_000_000, "online_cpu_seconds_per_party": 0.081}
    made |= {"simd": "avx2", "making_estimate": {"compute_seconds": 2.0}}
    made["making_parts"] = {
        "linear layers": {"cpu_seconds_per_party": 1.25, "bytes": 99_000_000},
        "quadratics": {"cpu_seconds_per_party": 0.5, "bytes": 78_000_000},
    }
    record("pi/together", private() | made, folder=results)
    assert "| 12,900 | avx2 | 2.25 s | 2.00 s | 185 MB | 16.5 MB | 0.081 s | 130 | 450 MB |" in table(
        "two-party", results
    )
    parts = table("two-party-parts", results)
    assert "| network | level | linear layers | quadratics |" in parts
    assert "| ResNet-18, 32×32, 12,900 ReLUs | avx2 | 1.25 s, 99.0 MB | 0.500 s, 78.0 MB |" in parts
    assert "12,900" not in table("two-party", results).partition("| 12,900")[2]
    assert table("networks", results).count("ResNet-18") == 1


def test_the_wan_table_states_how_far_the_estimate_is_off(results: Path) -> None:
    assert "| 1.43 s | 1.30 s | +10 % |" in table("wan", results)


def test_a_network_of_ones_own_stands_behind_the_known_ones_under_its_name(results: Path) -> None:
    record("pi/own", private() | {"network": "mynet"}, folder=results)
    lines = table("networks", results).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| ResNet-18, 32×32", "| mynet, 32×32"]


def test_batches_compare_throughput(results: Path) -> None:
    text = table("batches", results)
    assert "| 8 | 1 | 0.300 s | 26.7 |" in text
    assert "| 1 | 1 | 0.060 s | 16.7 |" in text


def test_training_lists_finished_replacements_only(tmp_path: Path) -> None:
    result = {"event": "result", "relus": 12_900, "relus_total": 491_520, "epochs": 12}
    result |= {"teacher_test_accuracy": 77.5, "test_accuracy": 74.0, "lost": 2, "far": 30, "lost_of": 47_500}
    for name, event in (("done", result), ("going", {"event": "epoch", "relus": 20_000})):
        run = tmp_path / "training" / name
        run.mkdir(parents=True)
        (run / "log.jsonl").write_text(json.dumps(event) + "\n")
        (run / "settings.json").write_text(json.dumps({"model": "resnet18", "data": "cifar100", "recipe": "autorep"}))
    text = table("training", tmp_path)
    assert text.count("ResNet-18") == 1
    assert "| 12,900 of 491,520 | autorep | 12 | 77.50 % | 74.00 % | 2 of 47,500; 30 far | 74.92 % |" in text
    settings = {"model": "resnet18", "data": "cifar100", "recipe": "autorep", "start": "former/model.json"}
    (tmp_path / "training" / "done" / "settings.json").write_text(json.dumps(settings))
    assert "| autorep | 12 more | 77.50 % |" in table("training", tmp_path)
    (tmp_path / "training" / "done" / "settings.json").write_text(json.dumps(settings | {"start": "sensitivity"}))
    assert "| autorep | 12 | 77.50 % |" in table("training", tmp_path)
    older = {key: value for key, value in result.items() if key != "far"}  # "lost" then meant far
    (tmp_path / "training" / "done" / "log.jsonl").write_text(json.dumps(older) + "\n")
    assert "| not counted; 2 of 47,500 far |" in table("training", tmp_path)


def test_zoo_shows_every_model_three_ways(tmp_path: Path) -> None:
    accuracy = {"float": 91.0, "fixed": 90.8, "private": 90.6}
    model = {"relus": 5652, "accuracy": accuracy, "same_as_fixed": 499, "images": 500, "ties": 1}
    record("zoo", {"models": {"small": model}}, folder=tmp_path)
    assert "| small | 5,652 | 91.0 % | 90.8 % | 90.6 % | 499 of 500 | 1 |" in table("zoo", tmp_path)


def test_every_document_shows_what_is_recorded() -> None:
    root = Path(__file__).parents[2]
    for name in DOCUMENTS:
        text = (root / name).read_text(encoding="utf-8")
        assert "<!-- table:" in text
        assert fill(text, collect([root / "bench" / "results"])) == text, f"{name}: run make readme"


def test_only_marked_parts_change_and_a_second_pass_changes_nothing(results: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- table:wan -->\nold\n<!-- /table:wan -->\nafter\n")
    assert Tables((readme,), results, check=True).run() == 1
    assert Tables((readme,), results).run() == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- table:wan -->\n| network")
    assert text.endswith("<!-- /table:wan -->\nafter\n")
    assert "old" not in text
    assert fill(text, collect([results])) == text
    assert Tables((readme,), results, check=True).run() == 0


def test_a_table_without_results_stays_as_it_is() -> None:
    text = "<!-- table:kernels -->\nas it was\n<!-- /table:kernels -->"
    assert fill(text, Sources()) == text


def test_an_unknown_marker_suggests_the_nearest_table() -> None:
    with pytest.raises(ConfigError, match="did you mean 'headline'"):
        fill("<!-- table:headlines -->\n<!-- /table:headlines -->", Sources())
