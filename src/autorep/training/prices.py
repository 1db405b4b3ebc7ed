"""What a network's activations cost on a link, by the cost model: the network is traced once and counted many times."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import nn

from autorep.compiler.sketch import Sketch
from autorep.errors import ConfigError
from autorep.mpc.cost import LINKS, cost
from autorep.replacement import Replacement
from autorep.replacement.prices import Prices
from autorep.settings import nearest


def prices(model: nn.Module, handle: Replacement, example: torch.Tensor, seconds: float, link: str) -> Prices:
    """Of a replaced network on images like the example, for at most so many seconds on a link of `mpc.cost`."""
    if not seconds:
        raise ConfigError("method = latency: give the seconds that one inference may take, --latency 0.5 --link wan")
    if link not in LINKS:
        raise ConfigError(f"link = {link}; {nearest(link, list(LINKS))}")
    sketch = Sketch(model, example)
    sizes = {name: site.mask.numel() for name, site in handle.sites.items()}
    none = np.empty(0, np.int64)

    def took(kept: Mapping[str, np.ndarray], lines: Collection[str] = ()) -> float:
        return cost(sketch.program(kept, lines)).latency(link)["seconds"]

    def exact(counts: Mapping[str, int], lines: Collection[str]) -> float:
        return took({name: np.arange(count) for name, count in counts.items()}, lines)

    nothing = dict.fromkeys(sizes, none)
    base = took(nothing)
    relu = {name: (took({**nothing, name: np.arange(size)}) - base) / size for name, size in sizes.items()}
    line = {name: base - took(nothing, [name]) for name in sizes}
    return Prices(seconds, base, relu, line, exact)
