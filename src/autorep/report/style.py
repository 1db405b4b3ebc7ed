"""How every figure looks: a palette that survives colour-blindness, type that survives a phone, one way to save."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorep.errors import ConfigError
from autorep.table import thousands

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colours; wherever two series share a figure their markers or hatches differ as well.
BLUE, RED, GREY = "#0072B2", "#D55E00", "#8a8f98"
SERIES = (BLUE, RED, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
WIDTH = 5.0  # inches; drawn narrow, so that a phone need not shrink the letters much
INK = "#30343b"


def new_figure(height: float) -> Figure:
    """An empty figure whose parts do not overlap."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figures need matplotlib: pip install 'autorep[report]'") from None
    matplotlib.rcParams["svg.fonttype"] = "path"  # letters as shapes: the same on every machine
    matplotlib.rcParams["svg.hashsalt"] = "autorep"
    return Figure(figsize=(WIDTH, height), layout="constrained")


def one_axes(height: float) -> tuple[Figure, Axes]:
    """A figure with one picture."""
    figure = new_figure(height)
    return figure, figure.subplots()


def panels(count: int, columns: int, margin: float, height: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure of `count` small pictures in a grid, each row so high; places beyond them stay empty."""
    rows = math.ceil(count / columns)
    figure = new_figure(margin + height * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, grid[:count]


def bar_style(number: int) -> dict[str, Any]:
    """Colour and hatch of the bars of one series."""
    colour, hatch = SERIES[number % len(SERIES)], HATCHES[number % len(HATCHES)]
    return {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def legend_above(figure: Figure, columns: int, size: float = 8.5, **entries: Any) -> None:
    """Names of the series, above all pictures."""
    figure.legend(**entries, loc="outside upper center", ncols=columns, frameon=False, fontsize=size)


def tidy(axes: Axes, xlabel: str = "", ylabel: str = "", grid: str = "y") -> None:
    """Labels, thin frame, quiet grid."""
    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.tick_params(colors=INK, labelsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    if grid:
        axes.grid(axis=grid, color="#d9dce1", linewidth=0.6)  # type: ignore[arg-type]  # "x", "y" or "both"
    axes.set_axisbelow(True)


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends of a logarithmic axis: the finest choice that is not more than eight.

    There are three at least where the ends are more than a factor of two apart: else steps of fifths are taken.
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)

    def ticks(steps: tuple[float, ...]) -> list[float]:
        return [tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high]

    halves = tuple(n / 10 for n in range(10, 100, 5))
    choices = [ticks(steps) for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), halves)]
    best = max((choice for choice in choices if len(choice) <= 8), key=len)
    return best if len(best) > 2 else ticks((1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9))


def log_axis(axis: Axis, name: Callable[[float], str] = thousands, from_zero: bool = False) -> None:
    """Plain numbers along a logarithmic axis whose ends are set; `from_zero`: one whose lowest part is linear."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, SymmetricalLogLocator

    symmetrical = SymmetricalLogLocator(base=10, linthresh=10)
    axis.set_major_locator(symmetrical if from_zero else FixedLocator(log_ticks(*axis.get_view_interval())))
    axis.set_major_formatter(FuncFormatter(lambda value, _: name(value)))
    axis.set_minor_formatter(NullFormatter())


def few_ticks(axis: Axis, most: int, **options: bool) -> None:
    """Round numbers, in at most so many steps."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, **options))


def to_svg(figure: Figure) -> str:
    """The figure as an <svg> element that scales with the page and shares no ids with other figures."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    return re.sub(r"<svg[^>]*>", lambda found: re.sub(r' (?:width|height)="[^"]*"', "", found[0]), text, count=1)


def unique_ids(svg: str, prefix: str) -> str:
    """Rename every id in an <svg> element, so that several can stand in one page."""
    names: Iterable[str] = dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg))
    for name in sorted(names, key=len, reverse=True):
        svg = svg.replace(f'id="{name}"', f'id="{prefix}-{name}"')
        svg = svg.replace(f'"#{name}"', f'"#{prefix}-{name}"').replace(f"url(#{name})", f"url(#{prefix}-{name})")
    return svg


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write the figure as <name>.svg and <name>.png."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    figure.savefig(paths[0], facecolor="white", metadata={"Date": None})
    figure.savefig(paths[1], dpi=160, facecolor="white")
    return paths
