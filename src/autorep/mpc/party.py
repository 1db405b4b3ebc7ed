"""One party: runs a Program on shares, operation by operation, in lock step with the other party.

Three calls, in the order of their lives:

* `setup`, once per model: the parameter shares are packed for the kernels, and shown to the preparation, which may
  open them under blinding together with the other party.
* `prepare`, once per query and ahead of it, alone: correlations become U, P, Q, masks and comparison keys.
* `run`, when the image arrives: one pass over the program. A **wire** is an array both parties know; a **sum** is this
  party's additive share. Rounds and bytes are those of `inventory.program_rounds`, no more.

A party learns: the program's public part, uniform opened values, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autorep.errors import CheckpointError, MaterialError, ProtocolError
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.online import Exchange
from autorep.mpc.operations import Operation, Value, correlate, last_readers, protocols
from autorep.mpc.preparation import Preparation, QuerySource
from autorep.mpc.ring import reduce
from autorep.mpc.transport import Transport
from autorep.program import ir
from autorep.program.files import program_hash


@dataclass
class PreparedQuery:
    """Everything one query needs at one party; usable once.

    Attributes:
        steps: operation and its material, in program order.
        masks: wire name -> this party's share of its mask, for wires that are read as shares.
        source: what it was read from. Keys lie there; and unmapping a kit of many megabytes, as soon as nobody reads it
            any more, takes a millisecond that must not fall into the run.
        seconds: operation name -> time of the online step, filled by `run`.
    """

    kit_id: bytes
    batch: int
    steps: list[tuple[Operation, Any]] = field(repr=False)
    masks: dict[str, np.ndarray] = field(repr=False)
    source: QuerySource = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    used: bool = False


class Party:
    """One of the two servers.

    Args:
        program: its public part.
        shares: "<op>.<parameter>" -> this party's additive share (uint64) of every parameter.
        index: 0 or 1.
        comparison: how kept ReLUs are compared; both parties and the preparation must agree.
    """

    def __init__(
        self,
        program: ir.Program,
        shares: Mapping[str, np.ndarray],
        index: int,
        comparison: ComparisonName = "dcf",
    ) -> None:
        self.program, self.index, self.comparison = program.public(), index, comparison
        self.program_hash = bytes.fromhex(program_hash(program))
        self._preparation: Preparation | None = None
        self._shares = dict(shares)
        self._check_shares()
        self._own: dict[str, dict[str, Any]] = {}
        self._operations: dict[int, list[Operation]] = {}  # by batch size
        self._last_reader = last_readers(program)
        self._read_as_shares = {program.output.name}
        for operation in protocols(program):
            if operation.reads_shares:
                self._read_as_shares.update(operation.op.inputs)

    def setup(self, preparation: Preparation) -> None:
        """Once per model: pack every parameter share; the preparation sees those that correlations multiply."""
        for operation in protocols(self.program):
            own = self._own[operation.op.name] = {}
            for name in operation.parameters():
                share = self._shares.pop(f"{operation.op.name}.{name}")
                if name in operation.fixed():
                    preparation.parameter(operation, name, share)
                own[name] = operation.pack(name, share)
        self._preparation = preparation

    def source(self, kit: bytes | memoryview) -> QuerySource:
        """A query's correlations, from what the preparation stored of them."""
        if self._preparation is None:
            raise ProtocolError("source: the parameters are not set up yet; call setup first")
        return self._preparation.source(kit)

    def prepare(self, source: QuerySource, traced: bool = False) -> PreparedQuery:
        """Once per query, ahead of it: no communication, about as much work as the query itself.

        A `traced` query keeps every mask, so that `run` can record shares of all intermediate values.
        """
        for found, due, what in (
            (source.party, self.index, "party"),
            (source.program_hash, self.program_hash, "program"),
            (source.comparison, self.comparison, "comparison protocol"),
        ):
            if found != due:
                raise MaterialError(
                    f"kit {source.kit_id.hex()}: made for another {what} than this server's; prepare new kits"
                )
        if source.batch not in self._operations:
            self._operations[source.batch] = protocols(self.program, source.batch, self.comparison)
        operations = self._operations[source.batch]
        keep = {op.name for op in self.program.ops} if traced else self._read_as_shares
        materials, masks = correlate(self.program, operations, source, keep)
        steps = [
            (operation, operation.prepare(material, self._own[operation.op.name]))
            for operation, material in zip(operations, materials)
        ]
        return PreparedQuery(source.kit_id, source.batch, steps, masks, source)

    def run(
        self,
        transport: Transport,
        query: PreparedQuery,
        input_share: np.ndarray,
        trace: dict[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Online: this party's share of the answer, from its share of a batch of images (N, *input shape).

        `trace`, for debugging a model in one's own hands, receives this party's share of every operation's result.
        """
        if query.used:
            raise MaterialError(f"query {query.kit_id.hex()}: its randomness was used already; take a new kit")
        query.used = True
        expected = (query.batch, *self.program.input.shape)
        if input_share.shape != expected or input_share.dtype != np.uint64:
            raise ProtocolError(
                f"input share is {input_share.dtype} {input_share.shape}; this query needs uint64 {expected}"
            )
        exchange = Exchange(self.index, transport)
        values: dict[str, Value] = {}
        query.steps.reverse()  # popped from the end, so that each operation's material goes when it was used
        while query.steps:
            started = time.perf_counter()
            operation, material = query.steps.pop()
            op = operation.op
            inputs = [values[source] for source in op.inputs] or [Value(op, input_share)]
            result = operation.run(exchange, self._own[op.name], material, inputs)
            values[op.name] = value = Value(op, result, query.masks.get(op.name))
            if trace is not None:
                trace[op.name] = value.share(self.index)
            for source in op.inputs:
                if self._last_reader[source] == op.name:
                    values.pop(source, None)
            query.seconds[op.name] = time.perf_counter() - started
        return reduce(value.share(self.index), self.program.output.bits)

    def _check_shares(self) -> None:
        needed = {f"{o.op.name}.{name}" for o in protocols(self.program) for name in o.parameters()}
        if missing := sorted(needed - self._shares.keys()):
            raise CheckpointError(
                f"party {self.index}: the bundle lacks {len(missing)} parameter shares, first {missing[0]!r}; "
                "split the program again"
            )
