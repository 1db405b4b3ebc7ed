"""Wires and sums: gives every result its kind and inserts the operations that turn one into the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from autorep.compiler.draft import Draft
from autorep.program import ir

NEEDS_WIRES = (ir.Conv, ir.Linear, ir.Affine, ir.Product, ir.MaxPool, ir.Concat)
KEEPS_KIND = (ir.SumPool, ir.Flatten, ir.Gather)
GIVES_SUMS = (ir.Conv, ir.Linear, ir.Affine, ir.Product, ir.Add)


def assign_kinds(draft: Draft) -> Draft:
    """A draft in which multipliers read wires and activations read sums.

    A sum that a multiplier reads is opened once (`Requantize`), whoever else reads it: also for those who read parts of
    it only (`Gather`). A wire that an activation reads becomes a sum through an `Add` of one term, which is local.
    """
    result = Draft(parameters=draft.parameters, outputs=draft.outputs)
    output, readers = draft.output.name, draft.consumers()
    for op in draft.ops.values():
        inputs = op.inputs
        if needs_wires(op) or _is_part_of_wire(op, readers):
            inputs = tuple(_as_wire(result, name) for name in inputs)
        elif isinstance(op, ir.Activation | ir.Sign):
            inputs = tuple(_as_sum(result, name) for name in inputs)
        kind: ir.Kind = "wire"
        if isinstance(op, GIVES_SUMS):
            kind = "sum"
        elif isinstance(op, KEEPS_KIND):
            kind = result.ops[inputs[0]].kind
        result.ops[op.name] = dataclasses.replace(op, inputs=inputs, kind=kind)
    result.ops[output] = result.ops.pop(output)
    return result


def needs_wires(op: ir.Op) -> bool:
    """Whether sums that this operation reads must be opened first."""
    return isinstance(op, NEEDS_WIRES) or (isinstance(op, ir.Gather) and len(op.inputs) > 1)


def _is_part_of_wire(op: ir.Op, readers: Mapping[str, Sequence[ir.Op]]) -> bool:
    """Whether this is a part, read by multipliers alone, of something that is opened as a whole for another reader."""
    return (
        isinstance(op, ir.Gather)
        and len(readers[op.name]) > 0
        and all(map(needs_wires, readers[op.name]))
        and any(map(needs_wires, readers[op.inputs[0]]))
    )


def _as_wire(draft: Draft, name: str) -> str:
    return name if draft.ops[name].kind == "wire" else _convert(draft, name, f"{name}.wire", "wire")


def _as_sum(draft: Draft, name: str) -> str:
    return name if draft.ops[name].kind == "sum" else _convert(draft, name, f"{name}.sum", "sum")


def _convert(draft: Draft, name: str, new_name: str, kind: ir.Kind) -> str:
    if new_name not in draft.ops:
        common: dict[str, Any] = {
            "name": new_name,
            "inputs": (name,),
            "shape": draft.ops[name].shape,
            "bits": 0,
            "frac": 0,
        }
        op: ir.Op = ir.Add(**common, kind="sum")
        if kind == "wire":
            op = ir.Requantize(**common, kind="wire", shift=0, open_bits=0, one_round=False)
        draft.ops[new_name] = op
    return new_name
