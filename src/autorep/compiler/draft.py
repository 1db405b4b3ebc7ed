"""A Program in the making: operations without widths or scales yet, which the compiler's passes rewrite.

Every pass keeps the float meaning (`floating.run_ops` gives the same answer before and after), so each can be tested
alone. Until `widths` chooses the scales, an operation's `bits` is 0 and activations speak in 16 fractional bits.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from autorep.program.ir import Op

DRAFT_FRAC = 16  # scale of an activation's knots before widths are chosen

AnyOp = TypeVar("AnyOp", bound=Op)


@dataclass
class Draft:
    """Operations by name, in execution order, and their float parameters.

    outputs: numbers of every answer by name, when the model has several: the last operation gives them in a row.
    """

    ops: dict[str, Op] = field(default_factory=dict)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)

    def add(self, op: AnyOp, **parameters: np.ndarray) -> AnyOp:
        """Append an operation under a name made unique."""
        name, number = op.name, 1
        while name in self.ops:
            number += 1
            name = f"{op.name}.{number}"
        op = dataclasses.replace(op, name=name)
        self.ops[name] = op
        self.set_parameters(name, **parameters)
        return op

    def insert(self, op: AnyOp, before: str, **parameters: np.ndarray) -> AnyOp:
        """The same ahead of the operation of that name."""
        names = list(self.ops)
        op = self.add(op, **parameters)
        for name in names[names.index(before) :]:
            self.ops[name] = self.ops.pop(name)
        return op

    def set_parameters(self, name: str, **parameters: np.ndarray) -> None:
        for key, value in parameters.items():
            self.parameters[f"{name}.{key}"] = np.asarray(value)

    def parameter(self, name: str, key: str) -> np.ndarray:
        return self.parameters[f"{name}.{key}"]

    def consumers(self) -> dict[str, list[Op]]:
        """Who reads each result, in order."""
        readers: dict[str, list[Op]] = {name: [] for name in self.ops}
        for op in self.ops.values():
            for name in dict.fromkeys(op.inputs):
                readers[name].append(op)
        return readers

    @property
    def output(self) -> Op:
        return next(reversed(self.ops.values()))

    def bypass(self, name: str) -> None:
        """Remove an operation with one input; its readers read that input instead."""
        removed = self.ops[name]
        (source,) = removed.inputs
        last = self.output.name == name
        for reader in self.ops.values():
            if name in reader.inputs:
                inputs = tuple(source if i == name else i for i in reader.inputs)
                self.ops[reader.name] = dataclasses.replace(reader, inputs=inputs)
        self.drop(name)
        if last and self.output.name != source:  # the answer must stay the last operation
            self.ops[source] = self.ops.pop(source)

    def drop(self, name: str) -> None:
        """Forget an operation that nobody reads, with its parameters."""
        op = self.ops.pop(name)
        for key in op.parameter_names:
            self.parameters.pop(f"{name}.{key}", None)

    def prune(self) -> None:
        """Forget every operation that does not reach the answer (auxiliary heads, unused branches)."""
        needed = {self.output.name, next(iter(self.ops))}
        for op in reversed(self.ops.values()):
            if op.name in needed:
                needed.update(op.inputs)
        for name in [name for name in self.ops if name not in needed]:
            self.drop(name)
