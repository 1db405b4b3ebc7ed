"""What changes with the step: the learning rate, and how many ReLUs are kept."""

from __future__ import annotations

import math


def cosine(step: int, total: int, warmup: float) -> float:
    """Factor of the learning rate: rises linearly over the share `warmup`, then half a cosine down to 0."""
    rising = warmup * total
    if step < rising:
        return (step + 1) / (rising + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(total - rising, 1)))


def ramp(step: int, steps: int, total: int, budget: int) -> int:
    """ReLUs kept at a step: from all to the budget over `steps`, cubically, so most go early and the last slowly."""
    left = 1 - min((step + 1) / max(steps, 1), 1.0)
    return budget + round((total - budget) * left**3)
