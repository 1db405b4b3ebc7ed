"""The comparison with CrypTen: what can be checked without installing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autorep.bench import crypten
from autorep.bench.everything import FULL, QUICK
from autorep.bench.peers import describe
from autorep.errors import ConfigError


def test_outside_a_checkout_the_missing_script_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="crypten_shim"):
        crypten.install(tmp_path / "peers")


def test_rows_are_printed_with_ratio_and_notes() -> None:
    row = {"variant": "all ReLUs", "seconds": 0.2, "bytes_per_party": 6e6, "rounds": 34}
    rows = [{"system": "AutoReP", "ratio": 9.0, **row}, {"system": "CrypTen 0.4.1", **row}]
    text = describe({"rows": rows, "notes": ["What each counts."]})
    assert "9.0×" in text
    assert "What each counts." in text


def test_every_measured_case_has_a_name_of_its_own() -> None:
    names = [case.name + setting.suffix for case in (*QUICK, *FULL) for setting in case.settings]
    assert len(names) == len(set(names))
