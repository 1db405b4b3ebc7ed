"""Room: what an image takes of it decides whether fixed point still computes what float does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.program.room import room_taken
from autorep.replacement import replace_activations_


def _program(images: np.ndarray, keep: float):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 3),
    )
    handle = replace_activations_(model, torch.from_numpy(images[:1]), keep)
    handle.calibrate_(model, [torch.from_numpy(images)])
    handle.settle_(handle.require_budget())
    return compile_program(model.eval(), [images])


@pytest.mark.parametrize("keep", [0.0, 0.1])
def test_fixed_point_is_right_within_the_room_and_wrong_beyond(keep):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((64, 2, 6, 6)).astype(np.float32)
    program = _program(images, keep)
    assert room_taken(program, images).max() < 1
    checked = {"within": 0, "beyond": 0}
    for factor in np.geomspace(1, 400, 24):
        scaled = (factor * images[:8]).astype(np.float32)
        exact, fixed = program.run(scaled, mode="float"), program.run(scaled, mode="fixed")
        off = np.abs(exact - fixed).max(axis=1) / np.abs(exact).max(axis=1)
        taken = room_taken(program, scaled)
        assert (off[taken <= 1] < 0.05).all()
        assert (off[taken > 4] > 0.05).all()
        checked["within"] += int((taken <= 1).sum())
        checked["beyond"] += int((taken > 4).sum())
    assert min(checked.values()) > 8  # both sides were seen


def test_a_value_that_is_not_finite_takes_all_room():
    images = np.random.default_rng(1).standard_normal((16, 2, 6, 6)).astype(np.float32)
    program = _program(images, 0.0)
    images[3] *= 1e20
    taken = room_taken(program, images)
    assert np.isinf(taken[3])
    assert np.isfinite(np.delete(taken, 3)).all()
