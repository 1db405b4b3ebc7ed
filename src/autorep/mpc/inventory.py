"""What one query sends and consumes, from the Program alone; party, dealer and cost model agree on it exactly."""

from __future__ import annotations

from autorep.mpc.dealt import kit_items
from autorep.mpc.kit import HEADER_BYTES, TAG_BYTES
from autorep.mpc.operations import protocols
from autorep.mpc.sizes import Item, Round
from autorep.program import ir


def program_rounds(program: ir.Program, batch: int = 1, comparison: str = "dcf") -> list[Round]:
    """All exchanges of one query of `batch` images, in order."""
    return [entry for operation in protocols(program, batch, comparison) for entry in operation.rounds()]


def program_items(program: ir.Program, batch: int = 1, comparison: str = "dcf") -> list[Item]:
    """All tensors of its kits, in the order in which the dealer writes them."""
    return [item for operation in protocols(program, batch, comparison) for item in kit_items(operation)]


def kit_bytes(program: ir.Program, party: int, batch: int = 1, comparison: str = "dcf") -> int:
    """Size of one party's kit, header and tag included."""
    body = sum(item.bytes_to(party) for item in program_items(program, batch, comparison))
    return HEADER_BYTES + body + TAG_BYTES
