"""Figures about one network: accuracy at every stage, where its ReLUs remain, where its time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from autorep.report import style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

MAP_COLUMNS = 4


def accuracy_stages(stages: Sequence[tuple[str, float]]) -> Figure:
    """One bar per stage (name, accuracy in %), in order from above; the axis begins where differences show."""
    figure, axes = style.one_axes(0.55 + 0.42 * len(stages))
    values = [value for _, value in stages]
    low = max(0.0, math.floor((min(values) - 4) / 5) * 5)
    places = range(len(stages))
    axes.barh(places, [value - low for value in values], left=low, color=style.BLUE, height=0.62)
    for place, value in zip(places, values):
        axes.text(value - 0.01 * (100 - low), place, f"{value:.1f} %", va="center", ha="right", color="white", size=9)
    axes.set_yticks(places, [name for name, _ in stages])
    axes.invert_yaxis()
    axes.set_xlim(low, 100)
    style.tidy(axes, f"test accuracy, % (axis begins at {low:g})", grid="x")
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
    axes.set_yticks(places, [_short(name) for name, _, _ in layers])
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
    rows = math.ceil(len(maps) / columns)
    figure = style.new_figure(0.75 + 1.35 * rows)
    highest = max(float(share.max()) for share in maps.values()) or 1e-3
    scale = PowerNorm(0.5, 0, 100 * highest)  # up to the largest, and one lonely bright spot does not darken all others
    grid = style.panels(figure, len(maps), rows, columns)
    for axes, (name, share) in zip(grid, maps.items()):
        image = axes.imshow(100 * share, cmap="cividis", norm=scale, interpolation="nearest")
        axes.set_title(f"{_short(name)}\n{share.shape[0]}×{share.shape[1]}", fontsize=8, color=style.INK)
        axes.set_xticks([])
        axes.set_yticks([])
    bar = figure.colorbar(image, ax=list(grid), orientation="horizontal", fraction=0.06, pad=0.03, aspect=40)
    bar.set_ticks([round(100 * highest * part, 1) for part in (0, 0.05, 0.2, 0.5, 1)])
    bar.set_label("channels that keep their ReLU here, %", size=8.5, color=style.INK)
    bar.ax.tick_params(labelsize=8)
    return figure


def latency_by_layer(layers: Sequence[tuple[str, str, float]]) -> Figure:
    """Online milliseconds of every operation (name, kind, seconds), in order; kinds differ in colour and hatch."""
    figure, axes = style.one_axes(0.9 + 0.235 * len(layers))
    kinds = list(dict.fromkeys(kind for _, kind, _ in layers))
    for number, kind in enumerate(kinds):
        chosen = [(place, 1000 * seconds) for place, (_, each, seconds) in enumerate(layers) if each == kind]
        places, values = zip(*chosen)
        axes.barh(places, values, **style.bar_style(number), height=0.72, label=kind)
    axes.set_yticks(range(len(layers)), [_short(name) for name, _, _ in layers])
    axes.invert_yaxis()
    style.tidy(axes, "milliseconds online", grid="x")
    style.legend_above(figure, min(3, len(kinds)))
    return figure


def latency_stack(bars: Sequence[tuple[str, Mapping[str, float]]], quoted: Sequence[tuple[str, float]] = ()) -> Figure:
    """Stacked seconds by part, one bar per variant; `quoted` totals of others are drawn hollow below."""
    figure, axes = style.one_axes(1.15 + 0.42 * (len(bars) + len(quoted)))
    parts = list(dict.fromkeys(part for _, values in bars for part in values))
    totals = [1000 * sum(values.values()) for _, values in bars] + [1000 * seconds for _, seconds in quoted]
    left = np.zeros(len(bars))
    for number, part in enumerate(parts):
        widths = np.array([1000 * values.get(part, 0.0) for _, values in bars])
        axes.barh(range(len(bars)), widths, left=left, **style.bar_style(number), height=0.64, label=part)
        left += widths
    for number, (_, seconds) in enumerate(quoted):
        place = len(bars) + number
        axes.barh(place, 1000 * seconds, facecolor="none", edgecolor=style.GREY, linestyle="--", height=0.64)
    for place, total in enumerate(totals):
        axes.text(total + 0.01 * max(totals), place, _milliseconds(total), va="center", size=8.5, color=style.INK)
    axes.set_yticks(range(len(totals)), [name for name, _ in (*bars, *quoted)])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.17 * max(totals))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    style.few_ticks(axes.xaxis, 5)
    style.tidy(axes, "milliseconds, one image", grid="x")
    if any(len(values) > 1 for _, values in bars):  # otherwise every bar is named beside it
        style.legend_above(figure, min(3, len(parts)))
    return figure


def lead_differences(differences: np.ndarray, error: float) -> Figure:
    """Histogram of private minus fixed-point leads, with the documented rounding error as bounds."""
    figure, axes = style.one_axes(2.7)
    axes.hist(differences, bins=np.linspace(-error, error, 61).tolist(), color=style.BLUE)
    for bound in (-error, error):
        axes.axvline(bound, color=style.RED, linestyle="--", linewidth=1.2)
    text, top = f"rounding error\n±{error:.4f} ", axes.get_ylim()[1]
    axes.text(error, top, text, ha="right", va="top", size=8.5, color=style.INK)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    style.few_ticks(axes.xaxis, 5)
    style.tidy(axes, "lead of the best class: private minus fixed point", "images")
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


def _milliseconds(value: float) -> str:
    """As tables write it: one digit after the point below a second."""
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:,.2f} s"


def _short(name: str) -> str:
    """A layer's path without the words every layer has."""
    return name if len(name) <= 26 else "…" + name[-25:]
