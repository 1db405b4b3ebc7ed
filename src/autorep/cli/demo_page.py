"""The demo's report: what `autorep demo` measured, as a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autorep.report import style
from autorep.report.figures import relu_maps, relus_by_layer, short
from autorep.report.page import Page, Section
from autorep.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {  # what people call an operation; those that only move or add numbers are "other"
    "Conv": "convolution",
    "Linear": "linear",
    "Affine": "scale and shift",
    "Activation": "activation",
    "Sign": "activation",
    "Requantize": "requantise",
    "MaxPool": "max pooling",
    "Product": "product",
    "Input": "input",
}
STAGES = {
    "baseline": "all-ReLU baseline",
    "replaced": "after replacement",
    "fixed": "fixed point",
    "private": "private",
}


def write_demo_page(
    path: Path, result: Mapping[str, Any], masks: Mapping[str, np.ndarray], differences: np.ndarray
) -> None:
    """Write the page and its figures; `masks` by layer, `differences` of the best class's lead by image."""
    accuracy, costs, checked = result["accuracy"], result["per_image"], result["agreement"]
    stages = [(title, accuracy[name]) for name, title in STAGES.items()]
    layers = [(name, int(mask.sum()), int(mask.size)) for name, mask in masks.items()]
    timed = [(row["name"], row["kind"], row["seconds"]) for row in result["layers"]]
    milliseconds = [(name, kind, f"{1000 * seconds:.3f}") for name, kind, seconds in timed]
    page = Page(
        title="AutoReP demo: digits classified by two servers that never saw them",
        lead=(
            "A residual network was trained on the embedded digits, most of its ReLUs were replaced by quadratics, and "
            f"{result['images']} test images were classified by two server processes over TLS, each holding only a "
            "random share of image, weights and answer."
        ),
        facts=[
            ("private accuracy", f"{accuracy['private']:.1f} %"),
            ("ReLUs kept", f"{result['relus']:,} of {result['relus_total']:,}"),
            ("online per image", f"{costs['online_ms']:.1f} ms"),
            ("sent per server", f"{costs['online_bytes_per_party'] / 1e3:.1f} kB"),
            ("rounds", str(costs["rounds"])),
            ("prepared ahead", f"{costs['offline_bytes'] / 1e3:.0f} kB"),
        ],
        sections=[
            Section(
                "accuracy",
                "Accuracy at every stage",
                "All four on the same test images. Replacement costs what the first step shows; fixed point and the "
                "protocol cost nothing that is visible.",
                accuracy_stages(stages),
                "; ".join(f"{name}: {value:.1f} %" for name, value in stages),
            ),
            Section(
                "relus-by-layer",
                "Where the ReLUs remain",
                "Every element of every layer was ranked by what its replacement would cost; exactly the budget stays.",
                relus_by_layer(layers),
                "; ".join(f"{name}: {kept} of {total}" for name, kept, total in layers),
                Table(("layer", "kept", "all"), layers, "lrr"),
                folded=True,
            ),
            Section(
                "relu-maps",
                "The same as maps",
                "One picture per layer, rows and columns as in the image: bright places keep their ReLU in more "
                "channels.",
                relu_maps(masks),
                "Heat maps of the share of channels that keep their ReLU, one per layer.",
            ),
            Section(
                "latency",
                "Online time by layer",
                "Party 0's time in every operation, exchanges included (two processes, TLS on loopback); as a "
                f"service, an image took {costs['online_ms']:.1f} ms in {costs['rounds']} rounds.",
                latency_by_layer(timed),
                "Bars of milliseconds for every operation.",
                Table(("operation", "kind", "ms"), milliseconds, "llr"),
                folded=True,
            ),
            Section(
                "agreement",
                "Private against fixed point",
                "The servers round at random by the low bits of their masks, so logits differ a little from run to "
                f"run: here by at most {checked['largest']:.4f}. Predictions agree on {checked['equal']} of "
                f"{checked['images']} images, and must agree on the {checked['clear']} whose two best classes lie "
                "further apart than rounding can bridge.",
                lead_differences(differences, checked["error"]),
                "Histogram of how much the lead of the best class differs between the two modes, inside the bounds.",
            ),
        ],
        footer="Written by `autorep demo`. No outside resource is loaded by this page.",
    )
    page.write(path)


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


def latency_by_layer(layers: Sequence[tuple[str, str, float]]) -> Figure:
    """Online milliseconds of every operation (name, kind, seconds), in order; kinds differ in colour and hatch."""
    figure, axes = style.one_axes(0.9 + 0.235 * len(layers))
    kinds = list(dict.fromkeys(kind for _, kind, _ in layers))
    for number, kind in enumerate(kinds):
        chosen = [(place, 1000 * seconds) for place, (_, each, seconds) in enumerate(layers) if each == kind]
        places, values = zip(*chosen)
        axes.barh(places, values, **style.bar_style(number), height=0.72, label=kind)
    axes.set_yticks(range(len(layers)), [short(name) for name, _, _ in layers])
    axes.invert_yaxis()
    style.tidy(axes, "milliseconds online", grid="x")
    style.legend_above(figure, min(3, len(kinds)))
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
