"""The page escapes what it shows and keeps the ids of its figures apart."""

from __future__ import annotations

from autorep.report.page import Page, Section
from autorep.report.style import new_figure, to_svg, unique_ids
from autorep.report.table import Table, thousands


def test_text_is_escaped() -> None:
    page = Page(
        "<b>", "a & b", facts=[("x<y", "1")], sections=[Section("s", "t<", "u&", table=Table(("<h>",), [("<c>",)]))]
    )
    text = page.render()
    assert "<b>" not in text
    assert "a &amp; b" in text
    assert "&lt;c&gt;" in text


def test_svg_scales_with_the_page() -> None:
    figure = new_figure(1.0)
    figure.subplots().plot([0, 1])
    head = to_svg(figure).split(">", 1)[0]
    assert "viewBox" in head
    assert "width=" not in head
    assert "height=" not in head


def test_unique_ids_renames_definitions_and_uses_alike() -> None:
    svg = '<svg><path id="p1"/><path id="p10"/><use href="#p1"/><g clip-path="url(#p10)"/></svg>'
    renamed = '<svg><path id="f-p1"/><path id="f-p10"/><use href="#f-p1"/><g clip-path="url(#f-p10)"/></svg>'
    assert unique_ids(svg, "f") == renamed


def test_counts_are_written_as_papers_write_them() -> None:
    assert [thousands(value) for value in (6, 6_000, 12_900, 491_520, 1_359_872)] == [
        "6",
        "6K",
        "12.9K",
        "492K",
        "1.36M",
    ]
