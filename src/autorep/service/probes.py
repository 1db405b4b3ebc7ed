"""Is a server cheating? Images whose answers are known, mixed among a client's own where no server can tell them apart.

A server sees uniform shares only, so whatever it does to an answer it does to a probe as well, with the probability
that a query is one. What this notices, and with which probability: docs/threat-model.md, "A server that cheats".
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autorep import private
from autorep.errors import CheatingError, ConfigError, DataError
from autorep.service.answers import Prediction

_CHANCE = random.SystemRandom()


@dataclass(frozen=True)
class Probes:
    """Images of one program with their right answers, as its owner wrote them down (`autorep compile --probes`).

    Attributes:
        program: hash of the program.
        images: (N, *input shape), as the program takes them.
        values: (N, …), what both servers' shares of the answer must add up to.
        tolerance: how far a right answer may be off, by the random rounding of the protocol.
    """

    program: str
    images: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    tolerance: float

    def save(self, path: Path) -> None:
        sink = io.BytesIO()
        np.savez(sink, program=self.program, images=self.images, values=self.values, tolerance=self.tolerance)
        private.write(path, sink.getvalue())

    @classmethod
    def load(cls, path: Path) -> Probes:
        try:
            with np.load(path, allow_pickle=False) as file:
                found = cls(str(file["program"]), file["images"], file["values"], float(file["tolerance"]))
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{path}: not a file of probes ({error}); `autorep compile --probes` writes one") from None
        if not len(found.images) or len(found.images) != len(found.values):
            raise DataError(f"{path}: {len(found.images)} probes and {len(found.values)} answers; ask the owner anew")
        return found

    def mix(self, images: np.ndarray, rate: float) -> Mixed:
        """These images with probes between them, at least this share of all and at least one.

        How many there are follows from the number of images; where they stand, and which, is drawn anew. So a server
        that knows everything else finds every place as likely to be a probe's as any other.
        """
        if not 0 < rate < 1:
            raise ConfigError(f"a share of {rate:g} probes; valid is what lies between 0 and 1, such as 0.1")
        if images.shape[1:] != self.images.shape[1:]:
            raise ConfigError(f"probes of shape {self.images.shape[1:]} for images of shape {images.shape[1:]}")
        count = math.ceil(len(images) * rate / (1 - rate))
        numbers: list[int | None] = [None] * (len(images) + count)
        for place in _CHANCE.sample(range(len(numbers)), count):
            numbers[place] = _CHANCE.randrange(len(self.images))
        own = iter(images)
        asked = [next(own) if number is None else self.images[number] for number in numbers]
        return Mixed(self, np.stack(asked) if asked else images, numbers)


@dataclass(frozen=True)
class Mixed:
    """What is asked, in order; `numbers` are those of the probes, None for the client's own images."""

    probes: Probes
    images: np.ndarray = field(repr=False)
    numbers: Sequence[int | None]

    def own(self, outcomes: Sequence[Any]) -> tuple[list[Any], int]:
        """The outcomes of the client's own images, and how many probes were answered rightly.

        Raises CheatingError, and gives none away, when an answered probe is wrong.
        """
        answered = [(number, o) for number, o in zip(self.numbers, outcomes) if isinstance(o, Prediction)]
        asked = [(number, outcome) for number, outcome in answered if number is not None]
        wrong = [number for number, outcome in asked if not self._right(number, outcome)]
        if wrong:
            raise CheatingError(
                f"{len(wrong)} of {len(asked)} probe images were answered wrongly: one of the servers, or who prepares "
                "for them, departs from the protocol; trust none of their answers, and tell the model's owner"
            )
        return [outcome for number, outcome in zip(self.numbers, outcomes) if number is None], len(asked)

    def _right(self, number: int, outcome: Prediction) -> bool:
        expected = self.probes.values[number]
        return outcome.values.shape == expected.shape and bool(
            np.abs(outcome.values - expected).max() <= self.probes.tolerance
        )
