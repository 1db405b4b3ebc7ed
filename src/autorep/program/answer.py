"""What a client is told: all logits, the best five classes in order, or the class alone; and whether it is in range.

The owner decides, when the program is made: `answering` appends operations to a compiled program, which servers can
only run whole. A client gets shares of the last operation's result and of nothing before it.

* `logits`: the last layer's values, as compiled.
* `class`, `top-5`: the logits are opened under a mask, with ANSWER_FRAC fractional bits, and `TopClasses` finds the
  best. The client learns their positions.
* checked: one more number, 1 where the energy (sum of squares) of the last features is at most REACH² times the typical
  one of calibration, else 0 (`WithinBound`). Clients refuse an answer whose flag is 0, so values that have outgrown the
  widths are noticed though no logit is seen. Where no logits are given this check always comes along.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np

from autorep.errors import ConfigError
from autorep.program.ir import Concat, Op, P, Requantize, TopClasses, WithinBound
from autorep.settings import nearest

AnswerName = Literal["class", "top-5", "logits"]
ANSWER_FRAC = 16  # fractional bits of logits that are compared; closer ones may come out in either order
REACH = 4.0  # features this many times larger than typical ones are out of range
_GUARD = 9  # a sum of squares that wrapped around passes once in 2**9
_COUNTS = {"class": 1, "top-5": 5}


@dataclass(frozen=True)
class Answers:
    """A batch, read.

    Attributes:
        classes: (N, at least 1), best first; of a network that returns several tensors, those of the first.
        logits: (N, classes), or None where they are not given.
        in_range: (N,) flags, or None where the servers do not check.
    """

    classes: np.ndarray
    logits: np.ndarray | None
    in_range: np.ndarray | None


def answer_facts(info: Mapping[str, Any]) -> tuple[AnswerName, bool]:
    """Which answer a program gives, and whether it is checked, from its public information."""
    stated = info.get("answer") or {}
    return stated.get("gives", "logits"), bool(stated.get("checked", False))


def read_answers(info: Mapping[str, Any], values: np.ndarray) -> Answers:
    """What the values (N, …) of a program's last operation say."""
    gives, checked = answer_facts(info)
    flags = None
    if checked:
        values, flags = values[:, :-1], values[:, -1] == 1
    if gives == "logits":
        main = next(iter(split_outputs(info, values).values()))
        return Answers(np.argsort(-main, axis=1, kind="stable"), values, flags)
    return Answers(values.astype(np.int64), None, flags)


def split_outputs(info: Mapping[str, Any], logits: np.ndarray) -> dict[str, np.ndarray]:
    """Logits (of one image or a batch) by name of the output, for a network that returns several tensors.

    Its program gives them in one row. The only output of any other network has the name "".
    """
    sizes: Mapping[str, int] = info.get("outputs") or {"": logits.shape[-1]}
    ends = list(accumulate(sizes.values()))
    return {name: logits[..., start:end] for name, start, end in zip(sizes, [0, *ends], ends)}


def feature_wire(ops: Sequence[Op]) -> Op:
    """The last wire before the answer: what the last layer reads."""
    return next(op for op in reversed(ops[:-1]) if op.kind == "wire")


def answering(program: P, gives: AnswerName, checked: bool = False) -> P:
    """A compiled program, made to answer so; where it gives no logits, it is always checked."""
    if gives not in get_args(AnswerName):
        raise ConfigError(f"answer {gives!r}; {nearest(gives, list(get_args(AnswerName)))}")
    if gives == "logits" and not checked:
        return program
    if "answer" in program.info:
        raise ConfigError(f"this program gives {program.info['answer']['gives']} already; compile the model again")
    logits = program.output
    if len(logits.shape) != 1 or logits.kind != "sum":
        raise ConfigError(
            f"the answer has shape {logits.shape} and comes from a {type(logits).__name__}: only programs that end in "
            "one row of logits of a linear layer can answer otherwise; compile with --answer logits"
        )
    if gives != "logits" and len(program.info.get("outputs") or ()) > 1:
        names = ", ".join(program.info["outputs"])
        raise ConfigError(f"a model of several outputs ({names}) has no single class; compile with --answer logits")
    ops = list(program.ops)
    if gives != "logits":
        _append_classes(ops, min(_COUNTS[gives], logits.size), program.info.get("output_limit"))
    _append_check(ops, feature_wire(program.ops), program.info)
    info = {**program.info, "answer": {"gives": gives, "checked": True}}
    return dataclasses.replace(program, ops=tuple(ops), info=info)


def _append_classes(ops: list[Op], count: int, limit: float | None) -> None:
    """Logits of at most `limit` are compared rightly; without a limit, all that their ring can hold."""
    logits = ops[-1]
    frac = min(ANSWER_FRAC, logits.frac)
    shift = logits.frac - frac
    wire = Requantize(
        name=_free("answer.open", ops), inputs=(logits.name,), shape=logits.shape, kind="wire", frac=frac, shift=shift,
        bits=logits.bits - shift, open_bits=logits.bits, one_round=True,
    )  # fmt: skip
    bits, differences = 1 + (wire.size - 1).bit_length(), wire.bits - 1
    if limit is not None:
        differences = min(differences, int(2 * limit * 2**frac + 2).bit_length())
    best = TopClasses(
        name=_free("answer.classes", ops), inputs=(wire.name,), shape=(count,), kind="sum", bits=bits, frac=0,
        window=min(differences + bits, 63),
    )  # fmt: skip
    ops += [wire, best]


def _append_check(ops: list[Op], features: Op, info: Mapping[str, Any]) -> None:
    """As fine as the ring of the features allows: bound·4**frac is to stay below 2**(bits left − _GUARD)."""
    answer, energy = ops[-1], info.get("feature_energy")
    if not energy:
        raise ConfigError("this program does not say how large its features are; compile it again with this release")
    bound = REACH**2 * energy
    frac = math.floor(min(features.frac, features.bits - features.frac - _GUARD - math.log2(bound)))
    if energy / features.size * 4.0**frac < 1:
        raise ConfigError(
            f"{features.name}: its values are too large to check the sum of their squares in {features.bits} bits; "
            "train with a range penalty so that they stay small, or compile with --answer logits"
        )
    flag = WithinBound(
        name=_free("answer.check", ops), inputs=(features.name,), shape=(1,), kind="sum", bits=answer.bits,
        frac=answer.frac, shift=features.frac - frac, bound=math.floor(bound * 4.0**frac),
    )  # fmt: skip
    both = Concat(
        name=_free("answer", [*ops, flag]), inputs=(answer.name, flag.name), shape=(answer.size + 1,), kind="sum",
        bits=answer.bits, frac=answer.frac,
    )  # fmt: skip
    ops += [flag, both]


def _free(name: str, ops: Sequence[Op]) -> str:
    """This name, or one like it that no operation has."""
    taken = {op.name for op in ops}
    while name in taken:
        name += "_"
    return name
