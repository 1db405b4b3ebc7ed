"""The dealer: makes correlated randomness ahead of time, for inferences whose data it never sees.

It knows the program's public part and two seeds per model; per query it draws a seed for each party, walks the
program once, and writes two kits: almost only a seed and the comparison keys for P0, the differences too for P1.
"""

from __future__ import annotations

import itertools
import secrets
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from autorep.errors import MaterialError
from autorep.mpc.blinding import Blinding, blinding_share
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.dealt import Dealing
from autorep.mpc.formats import layout
from autorep.mpc.inventory import kit_bytes, program_items
from autorep.mpc.kit import HEADER_BYTES, TAG_BYTES, Header, KitBuffer, KitWriter, Sink, kit_id
from autorep.mpc.operations import Operation, correlate, protocols
from autorep.mpc.prg import fresh_seed
from autorep.mpc.sizes import Item
from autorep.mpc.tape import DealerTape
from autorep.program import ir
from autorep.program.files import program_hash


@dataclass(frozen=True)
class Dealt:
    """The two kits of one query, in memory."""

    kit_id: bytes
    kits: tuple[memoryview, memoryview] = field(repr=False)


@dataclass(frozen=True)
class _Layout:
    """What the kits of every query of one batch size have in common."""

    operations: list[Operation]
    items: list[Item]
    sizes: tuple[int, int]
    id: bytes


class Dealer:
    """Deals kits for one program and one blinding of its weights."""

    def __init__(
        self, program: ir.Program, blinding: Blinding | None = None, comparison: ComparisonName = "dcf"
    ) -> None:
        self.program, self.blinding, self.comparison = program.public(), blinding or Blinding(), comparison
        self._series = secrets.token_bytes(8)  # of kit ids, which count for every batch size: see record.py
        self._numbers: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
        self._hash = bytes.fromhex(program_hash(program))
        seed0, seed1 = self.blinding.seeds
        self._layouts: dict[int, _Layout] = {}
        self._fixed = {}
        for operation in protocols(self.program):
            for name, shape in operation.fixed().items():
                label = f"{operation.op.name}.{name}"
                blind = blinding_share(seed0, label, shape) + blinding_share(seed1, label, shape)
                self._fixed[label] = operation.pack(name, blind)

    def deal(self, batch: int = 1, owed: dict[str, np.ndarray] | None = None) -> Dealt:
        """Two kits for one query of `batch` images, in memory; `owed` as for `deal_to`."""
        sizes = self.kit_bytes(batch)
        sinks = KitBuffer(sizes[0]), KitBuffer(sizes[1])
        name = self.deal_to(sinks, batch, owed=owed)
        return Dealt(name, (sinks[0].read(), sinks[1].read()))

    def kit_bytes(self, batch: int = 1) -> tuple[int, int]:
        """Sizes of the two parties' kits."""
        return self._layout(batch).sizes

    def _layout(self, batch: int) -> _Layout:
        if batch < 1:
            raise MaterialError(f"dealer: batch is {batch}; it must be at least 1")
        if batch not in self._layouts:
            size0, size1 = (kit_bytes(self.program, party, batch, self.comparison) for party in (0, 1))
            items = program_items(self.program, batch, self.comparison)
            operations = protocols(self.program, batch, self.comparison)
            self._layouts[batch] = _Layout(operations, items, (size0, size1), layout(items))
        return self._layouts[batch]

    def deal_to(
        self,
        sinks: tuple[Sink, Sink],
        batch: int = 1,
        seeds: tuple[bytes, bytes] | None = None,
        owed: dict[str, np.ndarray] | None = None,
    ) -> bytes:
        """Write the two kits of one query to two sinks, layer by layer; returns the kit id.

        Args:
            seeds: for tests that must know the masks; otherwise fresh ones are drawn.
            owed: for debugging a model in one's own hands, receives what the parties' shares of every sum will lack.
        """
        common = self._layout(batch)
        seeds = seeds or (fresh_seed(), fresh_seed())
        name = kit_id(self._series, batch, next(self._numbers[batch]).to_bytes(7, "big"))
        writers = []
        for party in (0, 1):
            body = common.sizes[party] - HEADER_BYTES - TAG_BYTES
            header = Header(
                party, self.comparison, batch, name, self._hash, self.blinding.id, seeds[party], body, common.id
            )
            writers.append(KitWriter(sinks[party], header))
        dealing = Dealing(DealerTape(name, common.items, seeds, (writers[0], writers[1])), self._fixed)
        sums = {op.name for op in self.program.ops if op.kind == "sum"}
        _, debts = correlate(self.program, common.operations, dealing, () if owed is None else sums)
        if owed is not None:
            owed.update(debts)
        for writer in writers:
            writer.finish()
        return name
