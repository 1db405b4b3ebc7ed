"""The demo's report: what `autorep demo` measured, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autorep.report import network_figures as figures
from autorep.report.page import Page, Section
from autorep.report.table import Table

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
                figures.accuracy_stages(stages),
                "; ".join(f"{name}: {value:.1f} %" for name, value in stages),
            ),
            Section(
                "relus-by-layer",
                "Where the ReLUs remain",
                "Every element of every layer was ranked by what its replacement would cost; exactly the budget stays.",
                figures.relus_by_layer(layers),
                "; ".join(f"{name}: {kept} of {total}" for name, kept, total in layers),
                Table(("layer", "kept", "all"), layers, "lrr"),
                folded=True,
            ),
            Section(
                "relu-maps",
                "The same as maps",
                "One picture per layer, rows and columns as in the image: bright places keep their ReLU in more "
                "channels.",
                figures.relu_maps(masks),
                "Heat maps of the share of channels that keep their ReLU, one per layer.",
            ),
            Section(
                "latency",
                "Online time by layer",
                "Party 0's time in every operation, exchanges included (two processes, TLS on loopback); as a "
                f"service, an image took {costs['online_ms']:.1f} ms in {costs['rounds']} rounds.",
                figures.latency_by_layer(timed),
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
                figures.lead_differences(differences, checked["error"]),
                "Histogram of how much the lead of the best class differs between the two modes, inside the bounds.",
            ),
        ],
        footer="Written by `autorep demo`. No outside resource is loaded by this page.",
    )
    page.write(path)
