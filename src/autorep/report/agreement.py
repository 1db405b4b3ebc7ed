"""Do the private answers say the same as fixed point, wherever rounding cannot decide?

The servers round every truncation up or down by the low bits of their masks, which nobody knows; `fixed` mode does the
same with public bits. So two runs of one image differ by rounding noise, and only by that. The rounding error of a
program on some images is documented as RUNS_FACTOR times the largest deviation of any logit, over RUNS seeded runs,
from the run that rounds to nearest: a multiple that random rounding does not reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autorep.program.fixed import FixedProgram, NearestRounding, SeededRounding
from autorep.program.ir import Program, decode

RUNS = 12
RUNS_FACTOR = 4.0


@dataclass(frozen=True)
class Agreement:
    """How private and fixed-point predictions compare.

    Attributes:
        error: the rounding error of a logit.
        clear: images whose two best classes differ by more than twice that error (each of the two may err).
        equal: predictions that agree, among all images.
        equal_clear: those among the clear ones; they must be all.
        largest: largest difference of a logit between private and fixed.
    """

    images: int
    error: float
    clear: int
    equal: int
    equal_clear: int
    largest: float

    @property
    def holds(self) -> bool:
        return self.equal_clear == self.clear


def rounding_error(program: Program, images: np.ndarray, runs: int = RUNS) -> float:
    """The documented rounding error of a logit of this program on these images."""
    fixed = FixedProgram(program)

    def logits(rounding: NearestRounding | SeededRounding) -> np.ndarray:
        return decode(fixed.run(images, rounding), program.output.bits, program.output.frac)

    nearest = logits(NearestRounding())
    return RUNS_FACTOR * max(float(np.abs(logits(SeededRounding(1 + run)) - nearest).max()) for run in range(runs))


def agreement(fixed: np.ndarray, private: np.ndarray, error: float) -> Agreement:
    """Compare logits (N, classes) of the two modes."""
    ordered = np.sort(fixed, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 2 * error
    equal = fixed.argmax(axis=1) == private.argmax(axis=1)
    return Agreement(
        images=len(fixed),
        error=error,
        clear=int(clear.sum()),
        equal=int(equal.sum()),
        equal_clear=int((equal & clear).sum()),
        largest=float(np.abs(fixed - private).max()),
    )
