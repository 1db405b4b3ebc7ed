"""Private and fixed-point answers agree wherever rounding cannot decide; a real difference is noticed."""

from __future__ import annotations

import numpy as np
import torch

from autorep import compile_program, models, replace_activations_
from autorep.modes import Program
from autorep.program.agreement import agreement, rounding_error


def small_program() -> tuple[Program, np.ndarray]:
    torch.manual_seed(0)
    model, images = models.create("digits_net").eval(), torch.rand(8, 1, 8, 8)
    replacement = replace_activations_(model, images[:1], budget=100)
    replacement.calibrate_(model, [images])
    replacement.finalize_()
    return compile_program(model, images), images.numpy()


def test_private_answers_stay_within_the_rounding_error() -> None:
    program, images = small_program()
    error = rounding_error(program, images, runs=4)
    fixed, private = program.run(images, mode="fixed"), program.run(images, mode="secure")
    checked = agreement(fixed, private, error)
    assert 0 < error < 0.5
    assert checked.largest <= error
    assert checked.holds


def test_a_changed_answer_fails_where_the_lead_is_clear() -> None:
    fixed = np.array([[3.0, 1.0], [1.0, 1.01], [0.0, 2.0]])
    private = np.array([[3.0, 1.0], [1.01, 1.0], [2.0, 0.0]])
    checked = agreement(fixed, private, 0.05)
    assert (checked.images, checked.equal, checked.clear, checked.equal_clear) == (3, 1, 2, 1)
    assert not checked.holds
