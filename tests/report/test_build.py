"""The report has a section for everything its sources hold, and nothing it had to invent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autorep.errors import DataError
from autorep.report.build import build
from tests.report.samples import inference, write_everything, write_record, write_run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("report")
    out = folder / "out" / "report.html"
    return out, build([write_everything(folder / "sources")], out)


def test_every_kind_of_source_gets_its_section(built: tuple[Path, dict[str, list[str]]]) -> None:
    expected = {
        "frontier-cifar10",
        "published",
        "frontier-latency",
        "breakdown-resnet18-32",
        "peers",
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
    assert "frontier-folder" in sections
    assert "published" not in sections
    assert "74.92" not in text
    assert "CIFAR" not in text


def test_throttled_and_batched_runs_do_not_enter_the_breakdown(tmp_path: Path) -> None:
    rows = [inference(12_900, 0.08), inference(50_000, 9.0, link="wan"), inference(100_000, 9.0, batch=8)]
    write_record(tmp_path / "results", "pi", rows)
    build([tmp_path / "results"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    section = text[text.index('<section id="breakdown') :]
    assert "<td class=n>12,900</td>" in section
    assert "<td class=n>50,000</td>" not in section
    assert "<td class=n>100,000</td>" not in section


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
