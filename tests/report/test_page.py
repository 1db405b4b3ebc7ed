"""The page escapes what it shows and keeps the ids of its figures apart."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from autorep.report.page import Page, Section
from autorep.report.style import log_ticks, new_figure, to_svg, unique_ids
from autorep.table import Table, thousands


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


@given(st.floats(1.0, 1e7), st.floats(1.5, 1e6))
@example(1.0625, 2.25)
@example(1.51, 3.3)
def test_logarithmic_axes_have_ticks_one_can_read(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert ticks == sorted(ticks)
    assert all(low <= tick <= low * ratio for tick in ticks)
    assert len(ticks) <= 8
    assert len(ticks) >= (3 if ratio > 2 else 1)
    assert all(float(f"{tick:.2g}") == float(f"{tick:.12g}") for tick in ticks), "round numbers"
    assert not math.isnan(sum(ticks))


def test_contents_gather_titles_of_one_kind() -> None:
    titles = ["Latency: one", "Latency: two", "Growth", "Maps: a<b"]
    text = Page("t", "l", sections=[Section(f"s{n}", title, "") for n, title in enumerate(titles)]).render()
    contents = text[text.index("<nav") : text.index("</nav>")]
    assert contents.count("<li>") == 3
    assert '<li>Latency: <a href="#s0">one</a>, <a href="#s1">two</a></li>' in contents
    assert '<li><a href="#s2">Growth</a></li>' in contents
    assert "a&lt;b" in contents


def test_tables_scroll_on_a_phone() -> None:
    text = Page("t", "l", sections=[Section("s", "t", "", table=Table(("a",), [("b",)]))]).render()
    assert '<div class="wide"><table>' in text
    narrow = text[text.index("@media (max-width: 480px)") :]
    assert ".wide table { width: max-content" in narrow
