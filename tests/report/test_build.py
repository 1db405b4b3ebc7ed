"""The report has a section for everything its sources hold, and nothing it had to invent."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from autorep.errors import DataError
from autorep.report.build import build
from autorep.report.collect import collect
from autorep.report.cost_sections import breakdown_sections
from autorep.report.experiment_sections import experiment_sections
from autorep.report.figures import relu_maps
from autorep.report.headlines import headlines
from tests.report.samples import (
    inference,
    outcome,
    write_everything,
    write_experiment,
    write_inferences,
    write_record,
    write_run,
)

ZOO = {
    "images": 500, "relus": 9, "same_as_fixed": 499, "ties": 1,
    "accuracy": {"float": 90.0, "fixed": 90.0, "private": 90.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("report")
    out = folder / "out" / "report.html"
    return out, build([write_everything(folder / "sources")], out)


def test_every_kind_of_source_gets_its_section(built: tuple[Path, dict[str, list[str]]]) -> None:
    expected = {
        "frontier-resnet20-cifar10",
        "experiments-methods-relus",
        "experiments-methods-latency",
        "published",
        "frontier-latency",
        "breakdown-resnet18-32",
        "peers",
        "processor",
        "layers-default-3",
        "maps-default-3",
        "ablation-function",
        "ablation-recipe",
        "training-resnet20-cifar10",
        "growth",
    }
    assert expected <= set(built[1]["sections"])


def test_page_loads_nothing_from_outside(built: tuple[Path, dict[str, list[str]]]) -> None:
    text = built[0].read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert not re.findall(r"url\((?!#)[^)]*\)", text)


def test_ids_are_unique_and_references_resolve(built: tuple[Path, dict[str, list[str]]]) -> None:
    text = built[0].read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert used <= set(ids)


def test_figures_are_written_as_svg_and_png(built: tuple[Path, dict[str, list[str]]]) -> None:
    figures = [Path(name) for name in built[1]["figures"]]
    assert {path.suffix for path in figures} == {".svg", ".png"}
    assert all(path.stat().st_size > 1000 for path in figures)
    assert {path.stem for path in figures} == set(built[1]["sections"]) - {"published"}  # a table alone


def test_every_figure_is_described_for_those_who_cannot_see_it(built: tuple[Path, dict[str, list[str]]]) -> None:
    text = built[0].read_text(encoding="utf-8")
    assert text.count("<figure>") == text.count('role="img" aria-label="')


def test_published_points_are_marked_as_quoted(built: tuple[Path, dict[str, list[str]]]) -> None:
    text = built[0].read_text(encoding="utf-8")
    assert "74.92" in text
    assert "Quoted from publications" in text


def test_a_run_on_own_pictures_stands_beside_no_published_figure(tmp_path: Path) -> None:
    write_run(tmp_path, "own", data="folder", model="mynet.py:make")
    sections = build([tmp_path / "own"], tmp_path / "report.html")["sections"]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "frontier-mynet.py-make-folder" in sections
    assert "published" not in sections
    assert "74.92" not in text
    assert "CIFAR" not in text
    assert "From 1 training run. Everything was measured." in text


def test_latencies_carry_the_accuracies_of_our_own_models(built: tuple[Path, dict[str, list[str]]]) -> None:
    text = built[0].read_text(encoding="utf-8")
    section = text[text.index('<section id="frontier-latency') :].split("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section)
    assert any("ResNet-18, CIFAR-100" in row and ">80<" in row and "74.00" in row for row in rows)
    assert any("ResNet-18, CIFAR-100" in row and ">300<" in row and "77.50" in row for row in rows)
    assert "74.92" not in section


def test_a_figure_of_methods_has_eight_lines_and_its_table_every_run(tmp_path: Path) -> None:
    outcomes = [outcome(f"method {n}", budget, 90.0 - n) for n in range(10) for budget in (5652, 18842)]
    outcomes += [outcome("method 0", 5652, 88.0, seed=1), outcome("stray", 5652, 10.0, seconds=None)]
    write_experiment(tmp_path, outcomes)
    sections = {one.name: one for one in experiment_sections(collect([tmp_path]))}
    by_relus, by_latency = sections["experiments-methods-relus"], sections["experiments-methods-latency"]
    assert by_relus.figure is not None
    assert len(by_relus.figure.axes[0].lines) == 8
    assert "The 8 best of 11" in by_relus.text
    assert "method 0: 89.00 % at 5652" in by_relus.description  # the mean of two seeds
    assert by_relus.table is not None
    assert len(by_relus.table.rows) == 22
    assert by_latency.table is not None
    assert len(by_latency.table.rows) == 21  # what does not compile has no latency


def test_throttled_and_batched_runs_do_not_enter_the_breakdown(tmp_path: Path) -> None:
    rows = [inference(12_900, 0.08), inference(50_000, 9.0, link="wan"), inference(100_000, 9.0, batch=8)]
    write_inferences(tmp_path / "results", *rows)
    build([tmp_path / "results"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    section = text[text.index('<section id="breakdown') :]
    assert "<td class=n>12,900</td>" in section
    assert "<td class=n>50,000</td>" not in section
    assert "<td class=n>100,000</td>" not in section


def test_a_forced_level_does_not_stand_for_the_processors_own(tmp_path: Path) -> None:
    write_inferences(tmp_path, inference(12_900, 0.033))
    forced = write_record(tmp_path / "pi-avx2", "resnet18", inference(12_900, 0.05))
    forced.write_text(forced.read_text().replace('"name": "resnet18"', '"name": "pi-avx2/resnet18"'))
    sources = collect([tmp_path])
    assert len(sources.records) == 2
    (section,) = breakdown_sections(sources)
    assert section.description == "12.9K ReLUs: 33 ms"
    assert headlines(sources)[0][1] == "33.0 ms"


def test_unfinished_run_alone_gives_its_training_curve(tmp_path: Path) -> None:
    write_run(tmp_path, "going-on", finished=False)
    sections = build([tmp_path / "going-on"], tmp_path / "report.html")["sections"]
    assert "training-resnet20-cifar10" in sections
    assert not any(name.startswith("layers") for name in sections)


def test_nothing_to_read_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        build([tmp_path / "empty"], tmp_path / "report.html")
    with pytest.raises(DataError, match="absent"):
        build([tmp_path / "absent"], tmp_path / "report.html")


def test_headline_cards_say_what_the_sections_say(tmp_path: Path) -> None:
    write_run(tmp_path, "good", 92.0)
    write_run(tmp_path, "bad", 70.0)
    write_inferences(tmp_path, inference(12_900, 0.0552), inference(6_000, 0.04))
    rows = [{"system": "AutoReP, with dealer", "variant": "v", "relus": n, "ratio": n / 1000} for n in (0, 8000, 9000)]
    write_record(tmp_path, "peers", {"rows": rows})
    write_record(tmp_path, "zoo", {"models": {"a": ZOO, "b": ZOO}})
    cards = {value: what for what, value in headlines(collect([tmp_path]))}
    assert list(cards) == ["92.00 %", "55.2 ms", "34", "8.0×", "998"]
    assert "all: 92.60 %" in cards["92.00 %"]
    assert "12.9K" in cards["55.2 ms"]
    assert "of 1,000 private answers of 2 models" in cards["998"]
    ((what, value),) = headlines(collect([write_run(tmp_path / "alone", "bad", 70.0)]))
    assert ("all: 92.60 %" in what, value) == (True, "70.00 %")


def test_bars_are_as_long_as_the_table_says(tmp_path: Path) -> None:
    """Parts are medians of their own: 125 ms together where the whole took 123.1."""
    parts = {"Conv": 0.05, "Activation": 0.055, "exchanges": 0.02}
    write_inferences(tmp_path, inference(12_900, 0.1231, operations=parts), inference(50_000, 0.2))
    (section,) = breakdown_sections(collect([tmp_path]))
    assert section.figure is not None
    (axes,) = section.figure.axes
    assert [text.get_text() for text in axes.texts][:2] == ["123.1 ms", "200.0 ms"]
    assert section.table is not None
    assert [row[2] for row in section.table.rows] == ["0.123 s", "0.200 s"]


def test_fewer_relus_that_took_longer_are_explained(tmp_path: Path) -> None:
    slow = {"Conv": 0.1, "Activation": 0.1, "exchanges": 0.5}
    write_inferences(tmp_path, inference(50_000, 0.7, operations=slow), inference(500_000, 0.4))
    (section,) = breakdown_sections(collect([tmp_path]))
    assert "50K ReLUs took longer than 500K: the difference is in exchanges (500 against 80 ms)" in section.text
    write_inferences(tmp_path, inference(50_000, 0.3), inference(500_000, 0.4))
    (section,) = breakdown_sections(collect([tmp_path]))
    assert "longer" not in section.text


def test_held_out_above_test_is_explained(tmp_path: Path) -> None:
    log = write_run(tmp_path, "run", 90.0) / "log.jsonl"
    build([tmp_path], tmp_path / "plain.html")
    assert "had been trained on those images" not in (tmp_path / "plain.html").read_text()
    log.write_text(log.read_text().replace('"event": "result"', '"event": "result", "held_out_accuracy": 93.0'))
    build([tmp_path / "run"], tmp_path / "noted.html")
    assert "had been trained on those images" in (tmp_path / "noted.html").read_text()


def test_every_finished_model_is_drawn_on_a_scale_that_ends_at_its_largest_share(tmp_path: Path) -> None:
    for number in range(5):
        write_run(tmp_path, f"run-{number}", 90.0, seed=number)
    sections = build([tmp_path], tmp_path / "report.html")["sections"]
    assert [f"maps-run-{number}" for number in range(5)] == [name for name in sections if name.startswith("maps-")]
    masks = {"a": np.zeros((4, 6, 6), bool), "b": np.zeros((4, 6, 6), bool)}
    masks["a"][:3, 2, 2] = True
    figure = relu_maps(masks)
    scale = figure.axes[0].images[0].norm
    assert (scale.vmin, scale.vmax) == (0, 75)
    assert scale(75.0) == 1
