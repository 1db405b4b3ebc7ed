"""Figures that compare experiments: accuracy against ReLUs and latency, ablations, how cost grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autorep.report.style import GREY, HATCHES, INK, MARKERS, SERIES, log_ticks, new_figure, tidy
from autorep.report.table import thousands

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Series:
    """Points (x, accuracy in %) of one method; `ours` are drawn solid, quoted ones hollow."""

    name: str
    points: Sequence[tuple[float, float]]
    ours: bool = False


def frontier(series: Sequence[Series], xlabel: str, relus: bool) -> Figure:
    """Accuracy against ReLUs (logarithmic) or milliseconds; lines join the points of one method."""
    figure = new_figure(3.1 + 0.19 * ((len(series) + 1) // 2))
    axes = figure.subplots()
    for number, each in enumerate(sorted(series, key=lambda one: not one.ours)):
        points = sorted(each.points, key=lambda point: point[0] if relus else point[1])  # in order of the budget
        colour = SERIES[number % len(SERIES)]
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=colour,
            marker=MARKERS[(number + number // len(SERIES)) % len(MARKERS)],  # a colour's second turn looks different
            markersize=6.5 if each.ours else 5.5,
            markerfacecolor=colour if each.ours else "white",
            linestyle="-" if each.ours else "--",
            linewidth=1.6 if each.ours else 1.0,
            label=each.name,
            zorder=3 if each.ours else 2,
        )
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.margins(y=0.12)
    tidy(axes, xlabel, "accuracy, %", grid="both")
    _plain_ticks(axes, thousands if relus else "{:g}".format)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure


def grouped_bars(groups: Sequence[tuple[str, Mapping[str, float]]], ylabel: str) -> Figure:
    """Bars side by side, one colour and hatch per variant; the axis begins where differences show."""
    figure = new_figure(3.2)
    axes = figure.subplots()
    variants = list(dict.fromkeys(variant for _, values in groups for variant in values))
    everything = [value for _, values in groups for value in values.values()]
    low = max(0.0, np.floor(min(everything) - 0.35 * (max(everything) - min(everything)) - 1))
    width = 0.8 / len(variants)
    for number, variant in enumerate(variants):
        places = [
            (place + (number - (len(variants) - 1) / 2) * width, values[variant])
            for place, (_, values) in enumerate(groups)
            if variant in values
        ]
        bars = axes.bar(
            [x for x, _ in places],
            [y - low for _, y in places],
            width * 0.92,
            bottom=low,
            color=SERIES[number % len(SERIES)],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
            linewidth=0,
            label=variant,
        )
        axes.bar_label(bars, [f"{y:.1f}" for _, y in places], fontsize=8, color=INK, padding=2)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    axes.margins(y=0.12)
    tidy(axes, "", f"{ylabel} (axis begins at {low:g})")
    axes.yaxis.label.set_fontsize(9)
    figure.legend(loc="outside upper center", ncols=min(2, len(variants)), frameon=False, fontsize=8.5)
    return figure


@dataclass(frozen=True)
class Growth:
    """One panel: how something grows, measured points and a fitted line (slope, intercept) where there is one."""

    xlabel: str
    ylabel: str
    points: Sequence[tuple[float, float]]
    line: tuple[float, float] | None = None


def growth_curves(panels: Sequence[Growth]) -> Figure:
    """Small panels, two a row, each from zero: dots measured, a dashed line fitted."""
    columns = min(2, len(panels))
    rows = (len(panels) + columns - 1) // columns
    figure = new_figure(0.2 + 1.75 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels):
        x, y = np.array(sorted(panel.points), float).T
        if panel.line is not None:
            slope, intercept = panel.line
            ends = np.array([0.0, x.max()])
            axes.plot(ends, slope * ends + intercept, color=GREY, linestyle="--", linewidth=1.1)
        axes.plot(x, y, color=SERIES[0], marker="o", markersize=4.5, linestyle="" if panel.line else "-", linewidth=1.2)
        axes.set_xlim(0, 1.08 * x.max())
        axes.set_ylim(0, 1.18 * max(y.max(), 1e-9))
        tidy(axes, panel.xlabel, panel.ylabel)
        axes.xaxis.label.set_fontsize(8)
        axes.yaxis.label.set_fontsize(8)
        axes.tick_params(labelsize=7.5)
        _sparse_ticks(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _plain_ticks(axes: Axes, name: Callable[[float], str]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    axes.xaxis.set_major_locator(FixedLocator(log_ticks(*axes.get_xlim())))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: name(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _sparse_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: thousands(value)))
