"""The demo, cut short: real processes, real protocol, a table, a report, and an exit code that means something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autorep.cli import demo
from autorep.cli.main import main


def test_short_demo_goes_through_the_whole_chain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    (out / "baseline").mkdir(parents=True)
    (out / "baseline" / "settings.json").write_text("left by an earlier demo")
    (out / "mine.txt").write_text("the user's own")
    assert main(["demo", "--out", str(out), "--epochs", "3", "--images", "12", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["relus"] == 205
    assert result["accuracy"]["fixed"] == pytest.approx(result["accuracy"]["private"], abs=100 / 12)
    assert result["per_image"]["rounds"] == 11
    assert result["per_image"]["online_bytes_per_party"] > 0
    assert result["agreement"]["equal_clear"] == result["agreement"]["clear"]
    assert result["without_dealer"]["images"] == 12
    assert result["without_dealer"]["equal"] >= 11
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == 5
    assert (out / "mine.txt").read_text() == "the user's own"


def test_disagreement_fails_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = dict.fromkeys(("baseline", "replaced", "fixed", "private"), 90.0)
    checked = {"images": 10, "error": 0.01, "clear": 9, "equal": 8, "equal_clear": 8, "holds": False}
    costs = {"online_ms": 1.0, "online_bytes_per_party": 1, "rounds": 1, "offline_bytes": 1}
    result = {"accuracy": accuracy, "agreement": checked, "per_image": costs, "relus": 1, "relus_total": 2,
              "images": 10, "seconds": 1.0, "report": "report.html"}  # fmt: skip
    monkeypatch.setattr(demo, "demonstrate", lambda settings: result)
    assert main(["demo"]) == 1
    assert "THIS IS WRONG" in capsys.readouterr().out
