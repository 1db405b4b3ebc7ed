"""What a client gets: the program as the servers describe it, and a prediction for each image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autorep.preprocessing import Preprocessing, checked_numbers
from autorep.program.answer import read_answers, split_outputs
from autorep.service.shares import join


@dataclass(frozen=True)
class Prediction:
    """The answer for one image.

    Attributes:
        label: name of the most probable class; probability: its softmax, None where the servers give classes only. Of a
            network that returns several tensors, by the first of them.
        top: the most probable classes and their probabilities, best first, as far as the servers give them.
        in_range: False when the logits, or the features before them, are far beyond all that calibration showed: then
            this image has outgrown the network's polynomials, and the answer is noise.
        logits: the network's output, several of them in a row; None where the servers give classes only.
        outputs: the logits by name of the output, "" where there is one only; empty where there are no logits.
        values: all that the servers' shares add up to: logits or classes, then the flag where there is one.
        seconds: from the first byte sent to the answer.
        online_seconds, sent_bytes, rounds: of the protocol between the servers (bytes: the larger of both).
        offline_bytes: correlated randomness both servers consumed.
        attempts: how often the query was asked.
    """

    label: str
    probability: float | None
    top: tuple[tuple[str, float | None], ...]
    in_range: bool
    logits: np.ndarray | None = field(repr=False)
    outputs: dict[str, np.ndarray] = field(repr=False)
    values: np.ndarray = field(repr=False)
    seconds: float
    online_seconds: float
    sent_bytes: int
    rounds: int
    offline_bytes: int
    attempts: int


@dataclass(frozen=True)
class Description:
    """What both servers say about the program they run."""

    program: str
    input_shape: tuple[int, ...]
    input_frac: int
    output_bits: int
    output_frac: int
    info: dict[str, Any] = field(repr=False)

    @property
    def output_limit(self) -> float:
        """The largest |logit| the program's widths allow."""
        return float(self.info.get("output_limit") or np.inf)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How a picture becomes the input; None where the program does not take pictures."""
        return Preprocessing.of(self.info, self.input_shape)

    def pixels(self, images: Any) -> np.ndarray:
        """Images of any accepted form as a batch (N, *input shape) of numbers the program takes."""
        if self.preprocessing is not None:
            return self.preprocessing.batch(images)
        return checked_numbers(np.asarray(images), self.input_shape)

    def class_name(self, index: int) -> str:
        """The model owner's name of a class, or its number."""
        names = self.info.get("class_names") or ()
        return str(names[index]) if index < len(names) else str(index)


@dataclass(frozen=True)
class Part:
    """One server's part of the answer for one image."""

    share: bytes = field(repr=False)
    seconds: float
    sent_bytes: int
    rounds: int
    offline_bytes: int


def prediction(parts: list[Part], description: Description, top: int, seconds: float, attempts: int) -> Prediction:
    """Both servers' parts put together."""
    first, second = parts
    values = join(first.share, second.share, description.output_bits, description.output_frac)
    answer = read_answers(description.info, values[None])
    in_range = answer.in_range is None or bool(answer.in_range[0])
    probabilities, logits = None, None
    outputs: dict[str, np.ndarray] = {}
    if answer.logits is not None:
        logits = answer.logits[0]
        outputs = split_outputs(description.info, logits)
        in_range = in_range and bool(np.abs(logits).max() <= description.output_limit)
        main = next(iter(outputs.values()))
        exponentials = np.exp(main - main.max())
        probabilities = exponentials / exponentials.sum()
    best = tuple(
        (description.class_name(int(i)), None if probabilities is None else float(probabilities[i]))
        for i in answer.classes[0][: max(1, top)]
    )
    return Prediction(
        label=best[0][0],
        probability=best[0][1],
        top=best,
        in_range=in_range,
        logits=logits,
        outputs=outputs,
        values=values,
        seconds=seconds,
        online_seconds=max(first.seconds, second.seconds),
        sent_bytes=max(first.sent_bytes, second.sent_bytes),
        rounds=max(first.rounds, second.rounds),
        offline_bytes=first.offline_bytes + second.offline_bytes,
        attempts=attempts,
    )
