"""How fixed point holds in depth: a network of random weights at full ReLU against torch, image by image.

An image is *clear* when its two best classes differ, in torch, by more than the program's documented rounding error
(`program/agreement.py`); of the clear ones at least KEPT must keep the class that torch finds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autorep import models
from autorep.bench.networks import compile_random, random_images
from autorep.program.agreement import agreement, rounding_error
from autorep.program.ir import Conv, Linear

KEPT = 0.995
ERROR_IMAGES = 4  # on which the rounding error is measured
BATCH = 25


def measure(network: str = "resnet110", images: int = 400, seed: int = 0) -> dict[str, Any]:
    """One network, its random weights and images drawn from `seed`."""
    spec = models.spec(network)
    torch.manual_seed(seed)
    model = models.create(network)
    program = compile_random(model, network, (spec.channels, spec.image_size), seed=seed)
    x = random_images(images, spec.channels, spec.image_size, seed=seed + 1000)
    with torch.no_grad():
        expected = torch.cat([model(part) for part in x.split(BATCH)]).numpy()
    fixed = np.concatenate([program.run(part.numpy(), mode="fixed") for part in x.split(BATCH)])
    return {
        "network": network,
        "layers": sum(isinstance(op, Conv | Linear) for op in program.ops),
        "relus": program.relu_count,
        **compared(expected, fixed, rounding_error(program, x[:ERROR_IMAGES].numpy())),
    }


def compared(expected: np.ndarray, fixed: np.ndarray, error: float) -> dict[str, Any]:
    """Logits (N, classes) of torch and of fixed point."""
    found = agreement(expected, fixed, error)
    return {
        "images": found.images,
        "rounding_error": error,
        "largest_logit": float(np.abs(expected).max()),
        "largest_difference": found.largest,
        "clear": found.clear,
        "clear_kept": found.equal_clear,
        "kept": found.equal,
        "holds": found.clear > 0 and found.equal_clear >= KEPT * found.clear,
    }
