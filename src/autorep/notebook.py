"""What objects look like in a notebook: a panel with a heading, a table, small pictures; plain HTML without scripts."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Sequence

import numpy as np

_BLUE = (0, 90, 143)
_PICTURE_SIDE = 48  # of a shown map, in the page's pixels
_SHOWN = 200  # rows of a table


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def panel(title: str, text: str, *parts: str) -> str:
    """A heading, a sentence, and what belongs below."""
    return f"<div><b>{html.escape(title)}</b> {html.escape(text)}{''.join(parts)}</div>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> Markup:
    """An HTML table that scrolls inside its own frame; `sides` has l or r for each column."""
    aligned = {"l": "left", "r": "right"}
    styles = [f"text-align:{aligned[side]};padding:2px 8px" for side in sides]
    cells = [_cells("th", head, styles), *(_cells("td", row, styles) for row in rows[:_SHOWN])]
    more = f"<p>… and {len(rows) - _SHOWN:,} more</p>" if len(rows) > _SHOWN else ""
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return Markup(f'<div style="overflow-x:auto;max-height:32em"><table>{body}</table></div>{more}')


def bar(share: float) -> Markup:
    """A share as a bar and a number."""
    filled = f"display:inline-block;height:.7em;width:{60 * share:.1f}px;background:rgb{_BLUE}"
    frame = "display:inline-block;width:60px;background:#e3e6eb;line-height:.7em;margin-right:6px"
    return Markup(f'<span style="{frame}"><span style="{filled}"></span></span>{100 * share:.1f} %')


def map_picture(shares: np.ndarray) -> Markup:
    """Shares by row and column as a picture, from white for none to blue for the map's largest; else nothing."""
    if shares.ndim != 2:
        return Markup("")
    largest = float(shares.max())
    depth = (shares / largest if largest > 0 else shares)[..., None]
    levels = np.rint(255 * (1 - depth) + depth * np.array(_BLUE)).astype(np.uint8)
    width = max(1, round(_PICTURE_SIDE * shares.shape[1] / shares.shape[0]))
    address = base64.b64encode(_png(levels)).decode()
    style = f"width:{width}px;height:{_PICTURE_SIDE}px;image-rendering:pixelated;border:1px solid #dfe2e7"
    text = f"kept ReLUs by position, at most {100 * largest:.0f} % of the channels"
    return Markup(f'<img src="data:image/png;base64,{address}" style="{style}" alt="{text}" title="{text}">')


def _cells(tag: str, row: Sequence[str], styles: Sequence[str]) -> str:
    texts = (cell if isinstance(cell, Markup) else html.escape(cell) for cell in row)
    return "".join(f'<{tag} style="{style}">{text}</{tag}>' for style, text in zip(styles, texts))


def _png(levels: np.ndarray) -> bytes:
    """An image file of uint8 levels (rows, columns, 3)."""
    height, width, _ = levels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in levels)  # 0: no filter
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(lines))]
    written = [b"\x89PNG\r\n\x1a\n"]
    for kind, content in (*chunks, (b"IEND", b"")):
        written += [struct.pack(">I", len(content)), kind, content, struct.pack(">I", zlib.crc32(kind + content))]
    return b"".join(written)
