"""What `make soak` runs on is there, and its answers are numbers worth comparing."""

from __future__ import annotations

import numpy as np

from tests.service.soak import TOLERANCE, digits_program


def test_the_soak_has_a_program_whose_answers_differ() -> None:
    program, images = digits_program()
    answers = program.run(images[:8], "fixed")
    assert program.relu_count > 0
    assert np.isfinite(answers).all()
    assert np.ptp(answers, axis=0).max() > 10 * TOLERANCE
