"""What commands print: tables that fit a terminal, and the same result as JSON where asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autorep.errors import ConfigError
from autorep.table import Table, megabytes

__all__ = ["emit", "megabytes", "table", "told", "writable", "write"]


def table(rows: Sequence[Sequence[object]], head: Sequence[str], sides: str = "") -> str:
    """Columns padded to their widest cell; `sides` has 'r' or 'l' for each."""
    return Table(head, rows, sides).text()


def writable(folder: Path) -> Path:
    """The folder that a result will go to, checked before the work begins; nothing is created yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder}: cannot be written, since {there} is a file; name another place with --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder}: cannot be written: no permission in {there}; name another place with --out")
    return folder


def emit(result: dict[str, Any], text: str, json_path: str | Path | None) -> None:
    """Print `text` for people, and `result` as JSON to a file, or to standard output alone when PATH is `-`."""
    document = json.dumps(result, indent=2, sort_keys=False)
    if str(json_path) == "-":
        print(document)
        return
    print(text)
    if json_path is not None:
        Path(json_path).write_text(document + "\n", encoding="utf-8")
        print(f"wrote {json_path}", file=sys.stderr)


def told(verdicts: list[tuple[str, bool | None]]) -> list[str]:
    """A line a claim."""
    words = {True: "holds", False: "DOES NOT HOLD", None: "not run yet"}
    return [f"{words[verdict]}: {text}" for text, verdict in verdicts]


def write(folder: Path, text: list[str], record: dict[str, Any]) -> None:
    """Print the result, and keep it as table.txt and result.json."""
    folder.mkdir(parents=True, exist_ok=True)
    print("\n".join(text))
    (folder / "table.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {folder / 'result.json'}", file=sys.stderr)
