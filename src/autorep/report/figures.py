"""The figures: accuracy against ReLUs and latency, where ReLUs remain, where time goes, training, how cost grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autorep.report import style
from autorep.table import milliseconds, thousands

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

MAP_COLUMNS = 4


@dataclass(frozen=True)
class Series:
    """Points (x, accuracy in %) of one method; `ours` are drawn solid, quoted ones hollow."""

    name: str
    points: Sequence[tuple[float, float]]
    ours: bool = False


OURS: dict[str, Any] = {"markersize": 6.5, "linestyle": "-", "linewidth": 1.6, "zorder": 3}
QUOTED: dict[str, Any] = {"markersize": 5.5, "linestyle": "--", "linewidth": 1.0, "zorder": 2}


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
            markerfacecolor=colour if each.ours else "white",
            label=each.name,
            **(OURS if each.ours else QUOTED),
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
    figure, grid = style.panels(len(curves), min(2, len(curves)), 0.2, 1.75)
    for axes, curve in zip(grid, curves):
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


def relus_by_layer(layers: Sequence[tuple[str, int, int]]) -> Figure:
    """Kept against all ReLUs of every layer (name, kept, all), with the share written beside."""
    figure, axes = style.one_axes(0.9 + 0.28 * len(layers))
    places = range(len(layers))
    totals = [total for _, _, total in layers]
    axes.barh(places, totals, color="#e3e6eb", height=0.7, label="replaced by a quadratic")
    axes.barh(places, [kept for _, kept, _ in layers], color=style.BLUE, height=0.7, label="kept as ReLU")
    for place, (_, kept, total) in zip(places, layers):
        text = f"{kept:,} ({100 * kept / total:.1f} %)"
        axes.text(total + 0.01 * max(totals), place, text, va="center", size=8, color=style.INK)
    axes.set_yticks(places, [short(name) for name, _, _ in layers])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.32 * max(totals))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    style.few_ticks(axes.xaxis, 5)
    style.tidy(axes, "ReLUs", grid="x")
    style.legend_above(figure, 2)
    return figure


def relu_maps(masks: Mapping[str, np.ndarray]) -> Figure:
    """For every layer with rows and columns: the share of channels that keep their ReLU at each position."""
    from matplotlib.colors import PowerNorm

    maps = {name: mask.mean(axis=0) for name, mask in masks.items() if mask.ndim == 3}
    columns = len(maps) if len(maps) <= MAP_COLUMNS + 1 else MAP_COLUMNS
    figure, grid = style.panels(len(maps), columns, 0.75, 1.35)
    highest = max(float(share.max()) for share in maps.values()) or 1e-3
    scale = PowerNorm(0.5, 0, 100 * highest)  # up to the largest, and one lonely bright spot does not darken all others
    for axes, (name, share) in zip(grid, maps.items()):
        image = axes.imshow(100 * share, cmap="cividis", norm=scale, interpolation="nearest")
        axes.set_title(f"{short(name)}\n{share.shape[0]}×{share.shape[1]}", fontsize=8, color=style.INK)
        axes.set_xticks([])
        axes.set_yticks([])
    bar = figure.colorbar(image, ax=list(grid), orientation="horizontal", fraction=0.06, pad=0.03, aspect=40)
    bar.set_ticks([round(100 * highest * part, 1) for part in (0, 0.05, 0.2, 0.5, 1)])
    bar.set_label("channels that keep their ReLU here, %", size=8.5, color=style.INK)
    bar.ax.tick_params(labelsize=8)
    return figure


def latency_stack(bars: Sequence[tuple[str, Mapping[str, float]]], quoted: Sequence[tuple[str, float]] = ()) -> Figure:
    """Stacked seconds by part, one bar per variant; `quoted` totals of others are drawn hollow below."""
    figure, axes = style.one_axes(1.15 + 0.42 * (len(bars) + len(quoted)))
    parts = list(dict.fromkeys(part for _, values in bars for part in values))
    totals = [1000 * sum(values.values()) for _, values in bars] + [1000 * took for _, took in quoted]
    left = np.zeros(len(bars))
    for number, part in enumerate(parts):
        widths = np.array([1000 * values.get(part, 0.0) for _, values in bars])
        axes.barh(range(len(bars)), widths, left=left, **style.bar_style(number), height=0.64, label=part)
        left += widths
    for place, (_, took) in enumerate(quoted, len(bars)):
        axes.barh(place, 1000 * took, facecolor="none", edgecolor=style.GREY, linestyle="--", height=0.64)
    for place, total in enumerate(totals):
        text = milliseconds(total / 1000) if total < 1000 else f"{total / 1000:,.2f} s"
        axes.text(total + 0.01 * max(totals), place, text, va="center", size=8.5, color=style.INK)
    axes.set_yticks(range(len(totals)), [name for name, _ in (*bars, *quoted)])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.17 * max(totals))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    style.few_ticks(axes.xaxis, 5)
    style.tidy(axes, "milliseconds, one image", grid="x")
    if any(len(values) > 1 for _, values in bars):  # otherwise every bar is named beside it
        style.legend_above(figure, min(3, len(parts)))
    return figure


def training_curves(runs: Sequence[tuple[str, Sequence[Mapping[str, float]]]]) -> Figure:
    """Count, accuracy on held-out images and mask flips per epoch; one line per run (name, epoch records)."""
    figures = (("relus", "ReLUs kept"), ("held_out_accuracy", "held-out accuracy, %"), ("flips", "mask flips"))
    shown = [panel for panel in figures if any(panel[0] in epoch for _, epochs in runs for epoch in epochs)]
    figure = style.new_figure(0.5 + 1.55 * len(shown) + 0.2 * math.ceil(len(runs) / 2))
    grid = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    styles = ("-", "--", ":", "-.")
    for axes, (key, label) in zip(grid, shown):
        for number, (name, epochs) in enumerate(runs):
            points = [(epoch["epoch"], epoch[key]) for epoch in epochs if key in epoch]
            if points:
                axes.plot(
                    *zip(*points),
                    color=style.SERIES[number % len(style.SERIES)],
                    linestyle=styles[number % len(styles)],
                    marker=".",
                    linewidth=1.4,
                    label=name,
                )
        if key == "relus":
            axes.set_yscale("log")
            style.log_axis(axes.yaxis)
        elif key == "flips":
            axes.set_yscale("symlog", linthresh=10)
            axes.set_ylim(bottom=0)
            style.log_axis(axes.yaxis, from_zero=True)
        style.tidy(axes, "", label)
        axes.yaxis.label.set_fontsize(8.5)
    style.tidy(grid[-1], "epoch", grid[-1].get_ylabel())
    style.few_ticks(grid[-1].xaxis, 8, integer=True)
    handles: dict[str, Artist] = {}
    for axes in grid:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels())))
    style.legend_above(figure, min(2, len(handles)), 8, handles=handles.values(), labels=handles.keys())
    return figure


def short(name: str) -> str:
    """A layer's path without the words every layer has."""
    return name if len(name) <= 26 else "…" + name[-25:]
