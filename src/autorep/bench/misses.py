"""Wrong answers that nobody notices: images made brighter by a factor, through the very integers the servers compute.

`fixed` mode equals the protocol out of range as well, so no private run is needed. An image is *refused* when a client
would not share it (the program's input range), *flagged* when its logits leave what calibration showed, *wrong* when
its class differs from that of the float program, and *missed* when it is wrong and neither refused nor flagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autorep.program.ir import Program

FACTORS = (1.0, 1.25, 1.5, 2.0, 4.0, 8.0)


def misses(program: Program, images: np.ndarray, factors: Sequence[float] = FACTORS) -> list[dict[str, Any]]:
    """One row of counts per factor."""
    low, high = program.info["input_range"]
    axes = tuple(range(1, images.ndim))
    rows = []
    for factor in factors:
        x = factor * images
        with np.errstate(over="ignore", invalid="ignore"):  # far out of range quadratics leave even float behind
            exact, fixed = program.run(x, mode="float"), program.run(x, mode="fixed")
        refused = (x.min(axes) < low) | (x.max(axes) > high)
        flagged = np.abs(fixed).max(1) > program.info["output_limit"]
        wrong = exact.argmax(1) != fixed.argmax(1)
        rows.append(
            {
                "factor": factor,
                "images": len(x),
                "refused": int(refused.sum()),
                "wrong": int(wrong.sum()),
                "flagged": int((flagged & ~refused).sum()),
                "missed": int((wrong & ~refused & ~flagged).sum()),
                "missed_without_refusal": int((wrong & ~flagged).sum()),
            }
        )
    return rows
