"""Programs of models that return several tensors: the answer is all of them in one row, each under its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def split(info: Mapping[str, Any], logits: np.ndarray) -> dict[str, np.ndarray]:
    """A program's answer (or a batch of them) by name of the output; one that has no name is under "".

    Arguments:
        info: the program's, or its description's.
    """
    sizes: Mapping[str, int] = info.get("outputs") or {"": logits.shape[-1]}
    ends = np.cumsum(list(sizes.values()))[:-1]
    return dict(zip(sizes, np.split(logits, ends, axis=-1)))
