"""Runs and recorded results are read as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from autorep.errors import DataError
from autorep.report.collect import collect, differing
from tests.report.samples import LAYERS, write_record, write_run


def test_run_has_settings_epochs_result_and_masks(tmp_path: Path) -> None:
    write_run(tmp_path, "one", 91.0)
    (run,) = collect([tmp_path]).runs
    assert (run.name, run.settings["budget"], len(run.epochs)) == ("one", 0.03, 5)
    assert run.result["test_accuracy"] == 91.0
    masks = run.masks()
    assert {name: (mask.shape, int(mask.sum())) for name, mask in masks.items()} == {
        name: (shape, count) for name, shape, count in LAYERS
    }


def test_log_cut_short_keeps_its_whole_lines(tmp_path: Path) -> None:
    directory = write_run(tmp_path, "crashed", finished=False)
    log = directory / "log.jsonl"
    log.write_text(log.read_text()[:-20])
    (run,) = collect([directory]).runs
    assert len(run.epochs) == 4
    assert run.result == {}


def test_records_are_found_by_name(tmp_path: Path) -> None:
    for name in ("peers", "peers-spu", "cost"):
        write_record(tmp_path, name, {"rows": []})
    sources = collect([tmp_path])
    assert [record.name for record in sources.named("peers")] == ["peers"]
    assert [record.name for record in sources.named("peers*")] == ["peers-spu", "peers"]
    assert sources.inferences() == []


def test_differing_ignores_where_a_run_lies(tmp_path: Path) -> None:
    write_run(tmp_path, "one", function="linear")
    write_run(tmp_path, "two", function="quadratic")
    assert differing(collect([tmp_path]).runs) == ["function"]


def test_damaged_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DataError, match="broken.json"):
        collect([tmp_path])


def test_saved_model_without_its_run_shows_its_layers(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "runs", "one")
    saved = tmp_path / "zoo"
    saved.mkdir()
    for suffix in (".json", ".safetensors"):
        (directory / f"model{suffix}").rename(saved / f"named{suffix}")
    (run,) = collect([saved]).runs
    assert (run.name, run.logged, len(run.layers)) == ("named", False, len(LAYERS))
    assert sum(int(mask.sum()) for mask in run.masks().values()) == sum(count for _, _, count in LAYERS)
