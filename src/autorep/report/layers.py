"""Online time of every operation, measured with both parties in this process over an in-memory link."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from autorep.mpc.dealer import Dealer
from autorep.mpc.local import share_input
from autorep.mpc.party import Party
from autorep.mpc.transport import memory_pair
from autorep.program import ir
from autorep.program.files import share_parameters

WORDS = {
    "Conv": "convolution",
    "Linear": "linear",
    "Affine": "scale and shift",
    "Activation": "activation",
    "Requantize": "requantise",
    "MaxPool": "max pooling",
    "Product": "product",
    "Input": "input",
}


def kind(op: ir.Op) -> str:
    """What people call an operation; those that only move or add numbers are one kind."""
    return WORDS.get(type(op).__name__, "other")


def layer_seconds(program: ir.Program, image: np.ndarray, repeats: int = 15) -> list[tuple[str, str, float]]:
    """(name, kind, median seconds at party 0) of every operation, for a batch of one image."""
    dealer, shares = Dealer(program), share_parameters(program)
    parties = [Party(program, shares[i], i) for i in (0, 1)]
    links = memory_pair(60.0)
    masks = dealer.masks
    samples: dict[str, list[float]] = defaultdict(list)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda i: parties[i].setup(links[i], masks.seeds[i], masks.mask_id), (0, 1)))
        for _ in range(repeats):
            bundles, inputs = dealer.deal(1).bundles, share_input(program, image)
            queries = [parties[i].prepare(bundles[i]) for i in (0, 1)]
            list(threads.map(lambda i: parties[i].run(links[i], queries[i], inputs[i]), (0, 1)))  # noqa: B023
            for name, seconds in queries[0].seconds.items():
                samples[name].append(seconds)
    for link in links:
        link.close()
    return [(op.name, kind(op), float(np.median(samples[op.name]))) for op in program.ops]
