"""Wrong answers that nobody notices: images changed in many ways, through the very integers the servers compute.

`fixed` mode equals the protocol out of range as well, so no private run is needed. An image is *refused* when a client
would not share it (the program's input range) and *wrong* when its class differs from that of the float program. An
answer is *marked* by its logits when they leave what calibration showed, and by the servers' private flag when the
features before them do: clients who get logits have the former, clients who get classes the latter. It is *missed* when
it is wrong and not marked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autorep.modes import Program
from autorep.mpc.cost import cost
from autorep.program.answer import AnswerName, answering, read_answers

Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]
CHANGES: dict[str, Change] = {
    "none": lambda images, rng: images,
    "1.25 times brighter": lambda images, rng: 1.25 * images,
    "1.5 times brighter": lambda images, rng: 1.5 * images,
    "2 times brighter": lambda images, rng: 2 * images,
    "4 times brighter": lambda images, rng: 4 * images,
    "negative": lambda images, rng: 1 - images,
    "noise of ±0.1": lambda images, rng: images + rng.uniform(-0.1, 0.1, images.shape),
    "noise of ±0.5": lambda images, rng: images + rng.uniform(-0.5, 0.5, images.shape),
    "black and white": lambda images, rng: np.where(images > 0.5, 1.0, 0.0),
}


def misses(program: Program, images: np.ndarray, changes: dict[str, Change] = CHANGES) -> list[dict[str, Any]]:
    """One row of counts per change; images are pixels in [0, 1]."""
    checked = answering(program, "logits", checked=True)
    low, high = program.info["input_range"]
    axes = tuple(range(1, images.ndim))
    rows = []
    for name, change in changes.items():
        x = change(images, np.random.default_rng(0))
        with np.errstate(over="ignore", invalid="ignore"):  # far out of range quadratics leave even float behind
            exact, fixed = program.run(x, mode="float"), checked.run(x, mode="fixed")
        answers = read_answers(checked.info, fixed)
        assert answers.logits is not None
        assert answers.in_range is not None
        shared = (x.min(axes) >= low) & (x.max(axes) <= high)
        wrong = exact.argmax(1) != answers.classes[:, 0]
        by_logits, by_flag = np.abs(answers.logits).max(1) > program.info["output_limit"], ~answers.in_range
        counts = {
            "refused": ~shared,
            "wrong": wrong,
            "marked_by_logits": by_logits,
            "marked_by_flag": by_flag,
            "missed_by_logits": wrong & ~by_logits,
            "missed_by_flag": wrong & ~by_flag,
            "shared_and_missed_by_logits": shared & wrong & ~by_logits,
            "shared_and_missed_by_flag": shared & wrong & ~by_flag,
        }
        rows.append({"change": name, "images": len(x), **{key: int(found.sum()) for key, found in counts.items()}})
    return rows


def answer_costs(program: Program) -> list[dict[str, Any]]:
    """What each kind of answer adds to one query."""
    kinds: list[tuple[AnswerName, bool]] = [("logits", False), ("logits", True), ("class", True), ("top-5", True)]
    rows = []
    for gives, checked in kinds:
        counted = cost(answering(program, gives, checked)).to_json()
        figures = {name: counted[name] for name in ("rounds", "online_bytes_per_party", "offline_bytes")}
        rows.append({"answer": gives, "checked": checked, **figures})
    return rows
