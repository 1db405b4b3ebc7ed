"""docs/cli-json.md says what the commands write."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from autorep.cli import bench
from autorep.cli.main import COMMANDS, Commands, main

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cli-json.md"


def documented(command: str) -> set[str]:
    """Keys in the second column of a command's rows."""
    keys: set[str] = set()
    current = ""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) < 3:
            continue
        current = cells[0].strip("`") or current
        if current == command:
            keys |= set(re.findall(r"`(\w+)`", cells[1]))
    return keys


@pytest.mark.parametrize(
    "arguments",
    ["count digits_net", "check digits_net", "cost --model digits_net --relus 205", "zoo"],
)
def test_keys_are_the_documented_ones(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments.split(), "--json", "-"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert set(written) == documented(arguments.split()[0])


@pytest.mark.parametrize(("prefix", "commands"), [("", COMMANDS), ("bench ", bench.COMMANDS)])
def test_every_command_that_writes_json_is_documented(prefix: str, commands: Commands) -> None:
    for name, (module, settings, _) in commands.items():
        if hasattr(getattr(importlib.import_module(module), settings or "Nothing", None), "json"):
            assert documented(prefix + name), f"say what `autorep {prefix}{name} --json` writes"


def test_rows_have_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    main(["cost", "--model", "digits_net", "--json", "-"])
    layers = json.loads(capsys.readouterr().out)["layers"]
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if "rows of" in line and "`ring_multiplications`" in line]
    assert set(layers[0]) == set(re.findall(r"`(\w+)`", row.split("rows of")[1]))


def test_json_may_go_to_a_file_beside_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "digits_net", "--json", str(tmp_path / "count.json")]) == 0
    assert "4,096" in capsys.readouterr().out
    assert json.loads((tmp_path / "count.json").read_text())["total"] == 4096
