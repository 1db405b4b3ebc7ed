"""Do the private answers say the same as fixed point, wherever rounding cannot decide?

The servers round every truncation up or down by the low bits of their masks, which nobody knows; `fixed` mode does the
same with public bits. So two runs of one image differ by rounding noise, and only by that. Say no logit of a seeded run
is further than d from the run that rounds to nearest. Then the lead of one class over another differs by at most 4d
between two runs, two logits in each. This 4d, with d measured over RUNS seeded runs, is the documented rounding error
of a program on some images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autorep.program.answer import answer_facts
from autorep.program.fixed import FixedProgram, NearestRounding, SeededRounding
from autorep.program.ir import Program, decode

RUNS = 12
LOGITS = 4  # two logits in each of two runs


@dataclass(frozen=True)
class Agreement:
    """How private and fixed-point predictions compare.

    Attributes:
        error: the rounding error of a lead.
        clear: images whose two best classes differ by more than that error.
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
    """The documented rounding error of this program on these images."""
    fixed = FixedProgram(program)

    def logits(rounding: NearestRounding | SeededRounding) -> np.ndarray:
        return decode(fixed.run(images, rounding), program.output.bits, program.output.frac)

    nearest = logits(NearestRounding())
    return LOGITS * max(float(np.abs(logits(SeededRounding(1 + run)) - nearest).max()) for run in range(runs))


def steady_answers(program: Program, images: np.ndarray, runs: int = RUNS) -> tuple[np.ndarray, np.ndarray, float]:
    """Images whose answer rounding does not decide, that answer, and how far a right one may be off.

    Logits of any image will do, within the documented rounding error; classes only where every run finds the same.
    """
    fixed, output = FixedProgram(program), program.output
    values = [decode(fixed.run(images, SeededRounding(1 + run)), output.bits, output.frac) for run in range(runs)]
    if answer_facts(program.info)[0] != "logits":
        steady = np.all([found == values[0] for found in values], axis=(0, 2))
        return images[steady], values[0][steady], 0.0
    nearest = decode(fixed.run(images, NearestRounding()), output.bits, output.frac)
    return images, nearest, LOGITS * max(float(np.abs(found - nearest).max()) for found in values)


def leads(fixed: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """By how much the class that fixed point finds best leads the best other one, in `logits` (N, classes)."""
    rows, best = np.arange(len(fixed)), fixed.argmax(axis=1)
    others = logits.astype(np.float64, copy=True)
    others[rows, best] = -np.inf
    return logits[rows, best] - others.max(axis=1)


def agreement(fixed: np.ndarray, private: np.ndarray, error: float) -> Agreement:
    """Compare logits (N, classes) of the two modes."""
    clear = leads(fixed, fixed) > error
    equal = fixed.argmax(axis=1) == private.argmax(axis=1)
    return Agreement(
        images=len(fixed),
        error=error,
        clear=int(clear.sum()),
        equal=int(equal.sum()),
        equal_clear=int((equal & clear).sum()),
        largest=float(np.abs(fixed - private).max()),
    )
