"""Fixed point holds in depth: 110 layers with random weights keep the class wherever rounding cannot decide."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autorep import models
from autorep.compiler.compile import compile_program
from autorep.program.agreement import leads, rounding_error
from tests.program.networks import images, settle_

IMAGES = 200


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_110_layers_keep_the_class_of_torch():
    torch.manual_seed(0)
    network = models.create("resnet110", 10)
    x = images(IMAGES, 3, (3, 32, 32))
    settle_(network, images(32, 1, (3, 32, 32)))
    program = compile_program(network, x[:32])
    with torch.no_grad():
        expected = torch.cat([network(part) for part in x.split(50)]).numpy()
    fixed = program.run(x.numpy(), "fixed")
    error = rounding_error(program, x[:4].numpy())
    clear = leads(expected, expected) > error
    kept = (fixed.argmax(1) == expected.argmax(1))[clear]
    print(f"error {error:.3g}, largest logit {np.abs(expected).max():.3g}, clear {clear.sum()}, kept {kept.sum()}")
    assert clear.mean() > 0.5
    assert kept.mean() >= 0.995
