"""A network whose kit is larger than 4 GiB, dealt, delivered, stored and used by real processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.modes import Program
from autorep.mpc.inventory import kit_bytes
from autorep.service.local import LocalDeployment

pytestmark = pytest.mark.slow


def wide_program() -> Program:
    """Two layers of 64 channels at 240×240, all of whose ReLUs are kept: 7.4 million comparison keys."""
    torch.manual_seed(0)
    wide = 64
    layers = [nn.Conv2d(1, wide, 1), nn.ReLU(), nn.Conv2d(wide, wide, 1, groups=wide), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 5)).eval()
    return compile_program(model, torch.rand(4, 1, 240, 240), name="wide")


def test_a_kit_above_four_gib_goes_from_dealer_to_answer():
    program = wide_program()
    assert kit_bytes(program, 1) > 4 << 30
    image = np.random.default_rng(1).random((1, 1, 240, 240))
    running = LocalDeployment(
        program, prepare=1, lanes=1, options=("--timeout", "300", "--comparison", "dcf"), patience=900
    )
    with running, running.client(timeout=600.0) as client:
        answer = client.predict(image)[0]
    expected = program.run(image, "float")[0]
    assert np.abs(answer.logits - expected).max() < 0.01 * np.abs(expected).max()
