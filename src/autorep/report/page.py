"""The HTML page: one file, no script, no outside resource; readable on a phone, a desktop and on paper."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from autorep.report.style import save, to_svg, unique_ids
from autorep.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("page.html")


def slug(name: str) -> str:
    """A name as part of a file's name or a link's target: small letters, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


@dataclass(frozen=True, eq=False)
class Section:
    """One thing to show: a heading, a sentence or two, perhaps a figure, perhaps a table.

    Attributes:
        name: short, unique; the figure's file name and the link target.
        description: what the picture shows, for those who cannot see it.
        folded: whether the table is opened by a click, because the figure already says it.
    """

    name: str
    title: str
    text: str
    figure: Figure | None = None
    description: str = ""
    table: Table | None = None
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """A title, key figures in a row, and sections."""

    title: str
    lead: str
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    footer: str = ""

    def write(self, path: Path) -> list[Path]:
        """Write the page, and every figure beside it under figures/ as SVG and PNG; returns all files."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.render(), encoding="utf-8")
        written = [path]
        for section in self.sections:
            if section.figure is not None:
                written += save(section.figure, path.parent / "figures", section.name)
        return written

    def render(self) -> str:
        """The whole document."""
        facts = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in self.facts)
        body = "".join(_section(section) for section in self.sections)
        return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
            title=_text(self.title),
            lead=_text(self.lead),
            facts=f"<dl>{facts}</dl>" if facts else "",
            links=_contents(self.sections) if len(self.sections) > 3 else "",
            body=body,
            footer=_text(self.footer),
        )


def _contents(sections: Sequence[Section]) -> str:
    """Links, gathered under what stands before the colon of their titles; several of a kind share one line."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for section in sections:
        kind, _, what = section.title.partition(": ")
        kinds.setdefault(kind, []).append((section.name, what))
    lines = []
    for kind, links in kinds.items():
        named = [f'<a href="#{name}">{_text(what or kind)}</a>' for name, what in links]
        lines.append(f"<li>{named[0]}</li>" if links[0][1] == "" else f"<li>{_text(kind)}: {', '.join(named)}</li>")
    return f'<nav aria-label="Contents"><ol>{"".join(lines)}</ol></nav>'


def _section(section: Section) -> str:
    parts = [f'<section id="{section.name}"><h2>{_text(section.title)}</h2><p>{_text(section.text)}</p>']
    if section.figure is not None:
        svg = unique_ids(to_svg(section.figure), section.name)
        label = html.escape(section.description or section.title, quote=True)
        parts.append(f'<figure>{svg.replace("<svg", f"""<svg role="img" aria-label="{label}" """, 1)}</figure>')
    if section.table is not None:
        table = section.table.html()
        parts.append(f"<details><summary>The numbers</summary>{table}</details>" if section.folded else table)
    return "".join([*parts, "</section>\n"])


def _text(value: str) -> str:
    return html.escape(value, quote=False)
