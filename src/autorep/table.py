"""A table, for the terminal, for Markdown and for a page; and how numbers are written in all of them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows under a head.

    Attributes:
        sides: 'l' or 'r' for each column; the last letter holds for the columns that follow, without any 'l'.
        note: one line to stand below.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    sides: str = ""
    note: str = ""

    def text(self) -> str:
        """Columns padded to their widest cell."""
        cells = [[str(cell) for cell in row] for row in (self.head, *self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]

        def line(row: Sequence[str]) -> str:
            padded = (c.rjust(w) if s == "r" else c.ljust(w) for c, w, s in zip(row, widths, self._sides()))
            return "  ".join(padded).rstrip()

        rule = "  ".join("─" * width for width in widths)
        return "\n".join([line(cells[0]), rule, *map(line, cells[1:]), *([self.note] if self.note else [])])

    def markdown(self) -> str:
        rule = ["---:" if side == "r" else "---" for side in self._sides()]
        lines = ["| " + " | ".join(map(str, row)) + " |" for row in (self.head, rule, *self.rows)]
        return "\n".join([*lines, *(["", f"<sub>{self.note}</sub>"] if self.note else [])])

    def html(self) -> str:
        def row(cells: Sequence[object], tag: str) -> str:
            return "".join(
                f"<{tag}{' class=n' if side == 'r' else ''}>{html.escape(str(cell), quote=False)}</{tag}>"
                for cell, side in zip(cells, self._sides())
            )

        body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in self.rows)
        head = f"<thead><tr>{row(self.head, 'th')}</tr></thead>"
        note = f"<p>{html.escape(self.note, quote=False)}</p>" if self.note else ""
        return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>{note}'

    def _sides(self) -> str:
        return self.sides.ljust(len(self.head), self.sides[-1:] or "l")


def seconds(value: float | None) -> str:
    """Milliseconds' precision below a second; nothing where there is none."""
    return "" if value is None else f"{value:.3f} s" if value < 1 else f"{value:.2f} s"


def milliseconds(value: float | None, digits: int = 1) -> str:
    """Seconds as milliseconds; nothing where there are none."""
    return "" if value is None else f"{1000 * value:.{digits}f} ms"


def megabytes(count: float | None) -> str:
    """Bytes as MB, three digits or all before the point; nothing where there are none."""
    if count is None:
        return ""
    value = count / 1e6
    return f"{value:.2f} MB" if value < 10 else f"{value:.1f} MB" if value < 100 else f"{value:,.0f} MB"


def percent(value: float | None, digits: int = 2) -> str:
    """A percentage; nothing where there is none."""
    return "" if value is None else f"{value:.{digits}f} %"


def rate(value: float, unit: str) -> str:
    """Things a second in thousands of millions or in millions."""
    return f"{value / 1e9:.1f} G {unit}/s" if value >= 1e9 else f"{value / 1e6:.1f} M {unit}/s"


def thousands(value: float) -> str:
    """12,900 as 12.9K and 491,520 as 492K, as the papers write it."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}K" if value >= 1e3 else f"{value:g}"
