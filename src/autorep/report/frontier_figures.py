"""Figures that compare experiments: accuracy against ReLUs and latency, ablations, how cost grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autorep.report import style
from autorep.report.table import thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Series:
    """Points (x, accuracy in %) of one method; `ours` are drawn solid, quoted ones hollow."""

    name: str
    points: Sequence[tuple[float, float]]
    ours: bool = False


def frontier(series: Sequence[Series], xlabel: str, relus: bool) -> Figure:
    """Accuracy against ReLUs (logarithmic) or milliseconds; lines join the points of one method."""
    figure, axes = style.one_axes(3.1 + 0.19 * ((len(series) + 1) // 2))
    for number, each in enumerate(sorted(series, key=lambda one: not one.ours)):
        points = sorted(each.points, key=lambda point: point[0] if relus else point[1])  # in order of the budget
        turn, place = divmod(number, len(style.SERIES))  # at a colour's second turn its marker is another
        colour = style.SERIES[place]
        axes.plot(
            *zip(*points),
            color=colour,
            marker=style.MARKERS[(number + turn) % len(style.MARKERS)],
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
    style.tidy(axes, xlabel, "accuracy, %", grid="both")
    style.log_axis(axes.xaxis, thousands if relus else "{:g}".format)
    style.legend_above(figure, 2, 8)
    return figure


def grouped_bars(groups: Sequence[tuple[str, Mapping[str, float]]], ylabel: str) -> Figure:
    """Bars side by side, one colour and hatch per variant; the axis begins where differences show."""
    figure, axes = style.one_axes(3.2)
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
        x, y = np.array(places).T
        bars = axes.bar(x, y - low, width * 0.92, bottom=low, label=variant, **style.bar_style(number))
        axes.bar_label(bars, [f"{value:.1f}" for value in y], fontsize=8, color=style.INK, padding=2)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    axes.margins(y=0.12)
    style.tidy(axes, "", f"{ylabel} (axis begins at {low:g})")
    axes.yaxis.label.set_fontsize(9)
    style.legend_above(figure, min(2, len(variants)))
    return figure


def growth_curves(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Small panels, two a row, each from zero: dots measured, a dashed line where one was fitted."""
    columns = min(2, len(curves))
    rows = (len(curves) + columns - 1) // columns
    figure = style.new_figure(0.2 + 1.75 * rows)
    for axes, curve in zip(style.panels(figure, len(curves), rows, columns), curves):
        x, y = np.array(sorted(curve["points"]), float).T
        if fit := curve.get("fit"):
            ends = np.array([0.0, x.max()])
            axes.plot(ends, fit["slope"] * ends + fit["intercept"], color=style.GREY, linestyle="--", linewidth=1.1)
        axes.plot(x, y, "o" if fit else "o-", color=style.BLUE, markersize=4.5, linewidth=1.2)
        axes.set_xlim(0, 1.08 * x.max())
        axes.set_ylim(0, 1.18 * max(y.max(), 1e-9))
        style.tidy(axes, curve["x"], curve["y"])
        axes.xaxis.label.set_fontsize(8)
        axes.yaxis.label.set_fontsize(8)
        axes.tick_params(labelsize=7.5)
        style.few_ticks(axes.xaxis, 4)
        style.few_ticks(axes.yaxis, 4)
        axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
    return figure
