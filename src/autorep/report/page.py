"""The HTML page: one file, no script, no outside resource; readable on a phone, a desktop and on paper."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autorep.report.style import save, to_svg, unique_ids
from autorep.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    sections: Sequence[Section] = field(default_factory=list)
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
        return _DOCUMENT.format(
            title=_text(self.title),
            style=_STYLE,
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


_STYLE = """
:root { color-scheme: light; --ink: #22262c; --soft: #5b626d; --line: #dfe2e7; --paper: #ffffff; --tint: #f4f6f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--tint); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", sans-serif; }
main { max-width: 780px; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 .4rem; }
p { margin: .3rem 0 .8rem; max-width: 68ch; }
.lead { color: var(--soft); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; margin: 1.2rem 0; }
dl div { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem; padding: .6rem .8rem; }
dt { font-size: .8rem; color: var(--soft); line-height: 1.3; }
dd { margin: .1rem 0 0; font-size: 1.25rem; font-weight: 650; font-variant-numeric: tabular-nums; }
nav { margin: 1rem 0; font-size: .92rem; }
nav ol { margin: 0; padding-left: 1.6rem; }
a { color: #005a8f; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: .8rem; }
section { padding: 1.1rem; margin: 1rem 0; }
figure { margin: .5rem 0; }
figure svg { display: block; width: 100%; max-width: 640px; height: auto; margin: 0 auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
.n { text-align: right; }
td.n { white-space: nowrap; }
summary { cursor: pointer; color: #005a8f; font-size: .92rem; }
footer { color: var(--soft); font-size: .85rem; margin-top: 2rem; }
@media (max-width: 480px) {
  .wide table { width: max-content; min-width: 100%; } td, th { max-width: 14rem; }
  section { padding: .8rem .7rem; } main { padding: 1rem .5rem 2rem; } h1 { font-size: 1.4rem; }
}
@media print {
  body { background: none; font-size: 10.5pt; } main { max-width: none; padding: 0; } nav { display: none; }
  section, dl div { border-color: #bbb; border-radius: 0; break-inside: avoid; }
  figure svg { max-width: 13cm; max-height: 22cm; }
}
"""

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body><main>
<h1>{title}</h1>
<p class="lead">{lead}</p>
{facts}{links}
{body}<footer>{footer}</footer>
</main></body>
</html>
"""
