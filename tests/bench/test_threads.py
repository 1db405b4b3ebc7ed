"""`autorep bench threads`: every part is measured on both numbers of threads, and the number set before is kept."""

from __future__ import annotations

import json

import pytest

from autorep import _native
from autorep.cli.main import main


def test_every_part_is_measured_on_one_thread_and_on_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "threads", "--network", "digits_net", "--relus", "300", "--repeats", "1", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    parts = ["dealer", "prepare", "online, linear layers and others", "online, activations"]
    assert [row["part"] for row in result["rows"]] == parts
    assert all(row["seconds"] > 0 and row["with_threads"] > 0 for row in result["rows"])
    assert _native.get_threads() == 1


def test_one_thread_is_not_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "threads", "--threads", "1"]) == 2
    assert "at least 2 threads" in capsys.readouterr().err
