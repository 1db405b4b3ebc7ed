"""`autorep bench link`: every way is measured, and the text says what it shows."""

from __future__ import annotations

from autorep.bench import link
from autorep.report import tables


def test_every_way_moves_the_bytes() -> None:
    result = link.measure(sizes=(50_000, 600_000), repeats=3)
    assert [(row["way"], row["bytes"]) for row in result["rows"]] == [
        (way, size) for way in ("link", "tls", "tcp") for size in (50_000, 600_000)
    ]
    assert all(row["cpu_seconds"] > 0 and row["rate"] > 0 and row["rate_of_a_core"] > 0 for row in result["rows"])
    text = tables.link_speed(result).text()
    assert "0.6 MB" in text
    assert "TLS inside the kernel" in text
