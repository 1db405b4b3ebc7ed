"""The protocols of all operations: one table, and the walk that carries masks from operation to operation."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from autorep.errors import ProtocolError
from autorep.mpc.operations.activation import Activation
from autorep.mpc.operations.base import Operation, Value
from autorep.mpc.operations.input import Input
from autorep.mpc.operations.linear import Linear
from autorep.mpc.operations.local import Add, Concat, Flatten, Gather, SumPool
from autorep.mpc.operations.maxpool import MaxPool
from autorep.mpc.operations.product import Product
from autorep.mpc.operations.requantize import Requantize
from autorep.mpc.operations.sign import Sign
from autorep.mpc.operations.top_classes import TopClasses
from autorep.mpc.operations.within_bound import WithinBound
from autorep.mpc.verbs import Source
from autorep.program import ir

__all__ = ["OPERATIONS", "Operation", "Value", "correlate", "last_readers", "protocols"]

OPERATIONS: dict[type[ir.Op], type[Operation]] = {
    ir.Input: Input,
    ir.Conv: Linear,
    ir.Linear: Linear,
    ir.Affine: Linear,
    ir.Add: Add,
    ir.SumPool: SumPool,
    ir.Flatten: Flatten,
    ir.Concat: Concat,
    ir.Gather: Gather,
    ir.Product: Product,
    ir.Requantize: Requantize,
    ir.Activation: Activation,
    ir.Sign: Sign,
    ir.MaxPool: MaxPool,
    ir.TopClasses: TopClasses,
    ir.WithinBound: WithinBound,
}


def protocols(program: ir.Program, batch: int = 1, comparison: str = "dcf") -> list[Operation]:
    """Every operation's protocol, in program order."""
    for op in program.ops:
        if type(op) not in OPERATIONS:
            raise ProtocolError(f"{op.name}: the engine does not know operation {type(op).__name__}")
    found, opened = [], only_opened(program)
    for op in program.ops:
        sources = [program[source] for source in op.inputs]
        operation = OPERATIONS[type(op)](op, sources, batch, comparison)
        operation.opened = op.name in opened
        found.append(operation)
    return found


def only_opened(program: ir.Program) -> set[str]:
    """Names of the sums that reach nothing but openings: not the answer, nor whatever reads shares otherwise."""
    readers: dict[str, list[ir.Op]] = {op.name: [] for op in program.ops}
    for op in program.ops:
        for name in op.inputs:
            readers[name].append(op)
    found: set[str] = set()

    def settles(reader: ir.Op) -> bool:
        protocol = OPERATIONS[type(reader)]
        return protocol.opens or (protocol.passes_on and reader.name in found)

    for op in reversed(program.ops):
        if op.kind == "sum" and readers[op.name] and all(map(settles, readers[op.name])):
            found.add(op.name)
    return found


def last_readers(program: ir.Program) -> dict[str, str]:
    """Name of a value -> name of the operation that reads it last."""
    return {source: op.name for op in program.ops for source in op.inputs}


def correlate(
    program: ir.Program, operations: Sequence[Operation], source: Source, keep: Container[str] = ()
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Draw everything one query consumes: each operation's material; masks of wires and debts of sums in `keep`."""
    masks: dict[str, np.ndarray] = {}
    kept: dict[str, np.ndarray] = {}
    materials, last = [], last_readers(program)
    for operation in operations:
        op = operation.op
        material, rho = operation.correlate(source, [masks.get(name) for name in op.inputs])
        materials.append(material)
        if rho is not None:
            masks[op.name] = rho
            if op.name in keep:
                kept[op.name] = rho
        for name in op.inputs:
            if last[name] == op.name:
                masks.pop(name, None)
    return materials, kept
