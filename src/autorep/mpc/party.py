"""One party: runs a Program on shares, operation by operation, in lock step with the other party.

Three calls, in the order of their lives:

* `setup`, once per model: the weights are opened under the dealer's blinding (F = W + B) and packed for the kernels.
* `prepare`, once per query and ahead of it, alone: the kit becomes U, P, Q, masks and comparison keys.
* `run`, when the image arrives: one pass over the program. A **wire** is an array both parties know; a **sum** is this
  party's additive share. Rounds and bytes are those of `inventory.rounds`, no more.

A party learns: the program's public part, uniform opened values, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autorep.errors import CheckpointError, MaterialError, ProtocolError
from autorep.mpc import activation, linear, maxpool, product, requantize
from autorep.mpc.correlations import PartyTape
from autorep.mpc.dealer import blinding_share, rearrange
from autorep.mpc.inventory import ComparisonName, program_items
from autorep.mpc.kit import read_header
from autorep.mpc.online import Exchange
from autorep.mpc.ring import U64, reduce, shift_left
from autorep.mpc.transport import Transport
from autorep.program import ir
from autorep.program.files import program_hash


@dataclass
class PreparedQuery:
    """Everything one query needs at one party; usable once.

    Attributes:
        offline: operation name -> what `prepare` computed for it.
        masks: wire name -> this party's share of its mask, for wires that are read as shares.
        seconds: operation name -> time of the online step, filled by `run`.
    """

    kit_id: bytes
    batch: int
    offline: dict[str, Any] = field(repr=False)
    masks: dict[str, np.ndarray] = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    used: bool = False


class Party:
    """One of the two servers.

    Args:
        program: its public part.
        shares: "<op>.<parameter>" -> this party's additive share (uint64) of every parameter.
        index: 0 or 1.
        comparison: how kept ReLUs are compared; both parties and the dealer must agree.
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
        self._shares = dict(shares)
        self._check_shares()
        self._blinding_id: bytes | None = None
        self._weights: dict[str, linear.RingKernel] = {}
        self._opened_weights: dict[str, linear.RingKernel] = {}
        self._opened_coefficients: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        readers = {source: op for op in program.ops for source in op.inputs}
        self._last_reader = {source: op.name for source, op in readers.items()}
        self._read_as_shares = {program.output.name}
        for op in program.ops:
            if isinstance(op, ir.Add | ir.Product):
                self._read_as_shares.update(op.inputs)

    # ------------------------------------------------------------------ once per model

    def setup(self, transport: Transport, model_seed: bytes, blinding_id: bytes) -> None:
        """Open F = W + B for every weight and quadratic coefficient: one round each, 8 bytes an element."""
        transport.phase = "offline"
        for op in self.program.ops:
            if isinstance(op, linear.LinearOp):
                in_shape, label = self.program[op.inputs[0]].shape, f"{op.name}.weight"
                opened = self._open_parameter(transport, model_seed, label)
                self._opened_weights[op.name] = linear.RingKernel(op, in_shape, opened)
                self._weights[op.name] = linear.RingKernel(op, in_shape, self._shares.pop(label))
            elif isinstance(op, ir.Activation) and op.quad_count:
                self._opened_coefficients[op.name] = (
                    self._open_parameter(transport, model_seed, f"{op.name}.a"),
                    self._open_parameter(transport, model_seed, f"{op.name}.b"),
                )
        transport.phase = "online"
        self._blinding_id = blinding_id

    def _open_parameter(self, transport: Transport, model_seed: bytes, label: str) -> np.ndarray:
        share = self._shares[label]
        masked = share + blinding_share(model_seed, label, share.shape)
        return Exchange(self.index, transport).open(label, [(masked, 64)])[0]

    # ------------------------------------------------------------------ once per query, ahead of it

    def prepare(self, kit: bytes | memoryview, traced: bool = False) -> PreparedQuery:
        """The offline part: no communication, about as much work as the query itself.

        A `traced` query keeps every mask, so that `run` can record shares of all intermediate values.
        """
        header = read_header(kit)
        if self._blinding_id is None:
            raise ProtocolError("prepare: the weights are not opened yet; call setup first")
        for found, due, what in (
            (header.party, self.index, "party"),
            (header.program_hash, self.program_hash, "program"),
            (header.blinding_id, self._blinding_id, "blinding of the weights"),
            (header.comparison, self.comparison, "comparison protocol"),
        ):
            if found != due:
                raise MaterialError(
                    f"kit {header.kit_id.hex()}: made for another {what} than this server's; prepare new kits"
                )
        batch = header.batch
        items = program_items(self.program, batch, self.comparison)
        tape = PartyTape(items, self.index, header.seed, kit)
        offline: dict[str, Any] = {}
        rho: dict[str, np.ndarray] = {}
        for op in self.program.ops:
            masks = [rho[source] for source in op.inputs if source in rho]
            step: Any = None
            match op:
                case ir.Input():
                    rho[op.name] = step = tape.mask(f"{op.name}/mask").reshape(batch, *op.shape)
                case ir.Conv() | ir.Linear() | ir.Affine():
                    bias = self._shares[f"{op.name}.bias"]
                    step = linear.prepare(tape, op, self._opened_weights[op.name], masks[0], bias)
                case ir.Product():
                    step = product.prepare(tape, op)
                case ir.Requantize():
                    step = requantize.Prepared(tape, op, batch)
                    rho[op.name] = step.rho
                case ir.Activation():
                    coefficients = self._coefficients(op)
                    opened = self._opened_coefficients.get(op.name)
                    step = activation.Prepared(tape, op, batch, self.comparison, coefficients, opened)
                    rho[op.name] = step.rho
                case ir.MaxPool():
                    in_shape = self.program[op.inputs[0]].shape
                    step = maxpool.Prepared(tape, op, in_shape, batch, self.comparison, masks[0])
                    rho[op.name] = step.rho
                case ir.SumPool() | ir.Flatten() | ir.Concat() if op.kind == "wire":
                    rho[op.name] = rearrange(op, masks)
            offline[op.name] = step
        masks_read = {name: value for name, value in rho.items() if traced or name in self._read_as_shares}
        return PreparedQuery(header.kit_id, batch, offline, masks_read)

    def _coefficients(self, op: ir.Activation) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        if not op.quad_count:
            return None
        a, b, c = (self._shares[f"{op.name}.{name}"] for name in "abc")
        return a, b, c

    # ------------------------------------------------------------------ online

    def run(
        self,
        transport: Transport,
        query: PreparedQuery,
        input_share: np.ndarray,
        trace: dict[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """This party's share of the answer, from its share of a batch of images (N, *input shape).

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
        values: dict[str, np.ndarray] = {self.program.input.name: input_share}
        for op in self.program.ops:
            started = time.perf_counter()
            values[op.name] = self._step(op, exchange, query, values)
            query.offline.pop(op.name)
            if trace is not None:
                trace[op.name] = self._as_share(op, query, values)
            for source in op.inputs:
                if self._last_reader[source] == op.name and source in values:
                    del values[source]
            query.seconds[op.name] = time.perf_counter() - started
        output = self.program.output
        return reduce(self._as_share(output, query, values), output.bits)

    def _step(self, op: ir.Op, exchange: Exchange, query: PreparedQuery, values: dict[str, np.ndarray]) -> np.ndarray:
        """One operation: a wire's public value, or this party's share of a sum."""
        offline = query.offline[op.name]
        match op:
            case ir.Input():
                return exchange.open(f"{op.name}/open", [(values[op.name] + offline, op.bits)])[0]
            case ir.Conv() | ir.Linear() | ir.Affine():
                return linear.run(self._weights[op.name], values[op.inputs[0]], offline)
            case ir.Add():
                sources = [self.program[source] for source in op.inputs]
                shares = [shift_left(self._as_share(s, query, values), op.frac - s.frac) for s in sources]
                return sum(shares[1:], shares[0])
            case ir.Product():
                x, g = op.inputs
                return product.run(self.index, (values[x], values[g]), (query.masks[x], query.masks[g]), offline)
            case ir.Requantize() | ir.Activation() | ir.MaxPool():
                return offline.run(exchange, values[op.inputs[0]])
            case ir.SumPool() | ir.Flatten() | ir.Concat():
                return rearrange(op, [values[source] for source in op.inputs])
        raise ProtocolError(f"{op.name}: the engine does not know operation {type(op).__name__}")

    def _as_share(self, op: ir.Op, query: PreparedQuery, values: dict[str, np.ndarray]) -> np.ndarray:
        """This party's additive share of a value: of a wire, P0 takes X − ρ₀ and P1 takes −ρ₁."""
        if op.kind == "sum":
            return values[op.name]
        rho = query.masks[op.name]
        return values[op.name] - rho if self.index == 0 else U64(0) - rho

    def _check_shares(self) -> None:
        needed = {
            f"{op.name}.{parameter}"
            for op in self.program.ops
            for parameter in op.parameter_names
            if not (isinstance(op, ir.Activation) and not op.quad_count)
        }
        if missing := sorted(needed - self._shares.keys()):
            raise CheckpointError(
                f"party {self.index}: the bundle lacks {len(missing)} parameter shares, first {missing[0]!r}; "
                "split the program again"
            )
