"""What commands print: tables that fit a terminal, and the same result as JSON where asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def table(rows: Sequence[Sequence[object]], head: Sequence[str], right: str = "") -> str:
    """Columns padded to their widest cell; `right` names the columns (by letter, 'r' or 'l') to align right."""
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    sides = right.ljust(len(head), "l")

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if s == "r" else c.ljust(w) for c, w, s in zip(row, widths, sides)).rstrip()

    return "\n".join([line(cells[0]), "  ".join("─" * w for w in widths), *map(line, cells[1:])])


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


def megabytes(count: float) -> str:
    """Bytes as MB with a sensible number of digits."""
    return f"{count / 1e6:.2f} MB" if count < 1e8 else f"{count / 1e6:.0f} MB"
