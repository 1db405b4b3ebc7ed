"""What commands print: tables that fit a terminal, and the same result as JSON where asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autorep.report.table import Table, megabytes

__all__ = ["emit", "megabytes", "table"]


def table(rows: Sequence[Sequence[object]], head: Sequence[str], sides: str = "") -> str:
    """Columns padded to their widest cell; `sides` has 'r' or 'l' for each."""
    return Table(head, rows, sides).text()


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
