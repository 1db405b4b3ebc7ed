"""Whether a network's forward draws random numbers: one that does answers otherwise only now and then."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from autorep.errors import TraceError


@contextmanager
def refusing_chance(model: nn.Module) -> Iterator[None]:
    """Inside, the evaluated model is called; TraceError if a global generator of random numbers has moved."""
    before = _generators()
    yield
    for library, state in _generators().items():
        if state != before[library]:
            raise TraceError(
                f"{type(model).__name__} draws random numbers ({library}) in its forward although it is evaluated; an "
                "evaluated model must give one answer: draw them under `if self.training`"
            )


def _generators() -> dict[str, Any]:
    """Where the global generators of random numbers stand."""
    _, words, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002  # the one that a forward may use
    return {
        "Python's random": random.getstate(),
        "numpy.random": (np.asarray(words).tobytes(), position),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
