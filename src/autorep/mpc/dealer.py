"""The dealer: makes correlated randomness ahead of time, for inferences whose data it never sees.

It knows the program's public part and two seeds per model; per query it draws a seed for each party, walks the
program once, and writes two kits: almost only a seed and the comparison keys for P0, the differences too for P1.
"""

from __future__ import annotations

import io
import secrets
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from autorep.errors import MaterialError
from autorep.mpc import activation, linear, maxpool, product, requantize
from autorep.mpc.correlations import DealerTape
from autorep.mpc.inventory import ComparisonName, program_items
from autorep.mpc.kit import DIGEST_BYTES, HEADER_BYTES, Header, KitWriter
from autorep.mpc.prg import fresh_seed, stream
from autorep.program import ir
from autorep.program.files import program_hash


@dataclass(frozen=True)
class Blinding:
    """Masks B under which a model's weights are opened once, as two seeds; party i gets seeds[i] and the id."""

    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    seeds: tuple[bytes, bytes] = field(default_factory=lambda: (fresh_seed(), fresh_seed()), repr=False)


@dataclass(frozen=True)
class Dealt:
    """The two kits of one query, in memory."""

    kit_id: bytes
    kits: tuple[bytes, bytes] = field(repr=False)


def blinding_share(seed: bytes, label: str, shape: ir.Shape) -> np.ndarray:
    """One party's share of the mask of one parameter."""
    return stream(seed, f"model/{label}", shape)


class Dealer:
    """Deals kits for one program and one blinding of its weights."""

    def __init__(
        self, program: ir.Program, blinding: Blinding | None = None, comparison: ComparisonName = "dcf"
    ) -> None:
        self.program, self.blinding, self.comparison = program.public(), blinding or Blinding(), comparison
        self._hash = bytes.fromhex(program_hash(program))
        self._kernels: dict[str, linear.RingKernel] = {}
        self._coefficients: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for op in program.ops:
            if isinstance(op, linear.LinearOp):
                in_shape = program[op.inputs[0]].shape
                mask = self._mask(f"{op.name}.weight", linear.weight_shape(op, in_shape))
                self._kernels[op.name] = linear.RingKernel(op, in_shape, mask)
            elif isinstance(op, ir.Activation) and op.quad_count:
                channels = (op.shape[0],)
                self._coefficients[op.name] = (
                    self._mask(f"{op.name}.a", channels),
                    self._mask(f"{op.name}.b", channels),
                )

    def _mask(self, label: str, shape: ir.Shape) -> np.ndarray:
        seed0, seed1 = self.blinding.seeds
        return blinding_share(seed0, label, shape) + blinding_share(seed1, label, shape)

    def deal(self, batch: int = 1) -> Dealt:
        """Two kits for one query of `batch` images, in memory."""
        sizes = self.kit_bytes(batch)
        sinks = io.BytesIO(bytes(sizes[0])), io.BytesIO(bytes(sizes[1]))  # at their final size: growing would copy
        kit_id = self.deal_to(sinks, batch)
        return Dealt(kit_id, (sinks[0].getvalue(), sinks[1].getvalue()))

    def kit_bytes(self, batch: int = 1) -> tuple[int, int]:
        """Sizes of the two parties' kits."""
        items = program_items(self.program, batch, self.comparison)
        body0, body1 = (sum(item.bytes_to(party) for item in items) for party in (0, 1))
        return body0 + HEADER_BYTES + DIGEST_BYTES, body1 + HEADER_BYTES + DIGEST_BYTES

    def deal_to(
        self, sinks: tuple[BinaryIO, BinaryIO], batch: int = 1, seeds: tuple[bytes, bytes] | None = None
    ) -> bytes:
        """Write the two kits of one query to binary files, layer by layer; returns the kit id.

        `seeds` is for tests that must know the masks; otherwise fresh ones are drawn.
        """
        if batch < 1:
            raise MaterialError(f"dealer: batch is {batch}; it must be at least 1")
        seeds, kit_id = seeds or (fresh_seed(), fresh_seed()), secrets.token_bytes(16)
        items, sizes = program_items(self.program, batch, self.comparison), self.kit_bytes(batch)
        writers = []
        for party in (0, 1):
            body = sizes[party] - HEADER_BYTES - DIGEST_BYTES
            header = Header(party, self.comparison, batch, kit_id, self._hash, self.blinding.id, seeds[party], body)
            writers.append(KitWriter(sinks[party], header))
        self._walk(DealerTape(items, seeds, (writers[0], writers[1])), batch)
        for writer in writers:
            writer.finish()
        return kit_id

    def _walk(self, tape: DealerTape, batch: int) -> None:
        """Every operation's correlations, carrying each wire's mask to those that read it."""
        rho: dict[str, np.ndarray] = {}
        last_reader = {source: op.name for op in self.program.ops for source in op.inputs}
        for op in self.program.ops:
            masks = [rho[source] for source in op.inputs if source in rho]
            match op:
                case ir.Input():
                    rho[op.name] = tape.mask(f"{op.name}/mask").reshape(batch, *op.shape)
                case ir.Conv() | ir.Linear() | ir.Affine():
                    linear.deal(tape, op, self._kernels[op.name], masks[0])
                case ir.Product():
                    product.deal(tape, op, masks[0], masks[1])
                case ir.Requantize():
                    rho[op.name] = requantize.deal(tape, op, batch)
                case ir.Activation():
                    coefficients = self._coefficients.get(op.name)
                    rho[op.name] = activation.deal(tape, op, batch, self.comparison, coefficients)
                case ir.MaxPool():
                    in_shape = self.program[op.inputs[0]].shape
                    rho[op.name] = maxpool.deal(tape, op, in_shape, batch, self.comparison, masks[0])
                case ir.SumPool() | ir.Flatten() | ir.Concat() if op.kind == "wire":
                    rho[op.name] = rearrange(op, masks)
            for source in op.inputs:
                if last_reader[source] == op.name:
                    rho.pop(source, None)


def rearrange(op: ir.SumPool | ir.Flatten | ir.Concat, values: list[np.ndarray]) -> np.ndarray:
    """The local operations that treat opened values, masks and shares alike."""
    match op:
        case ir.SumPool():
            return maxpool.sum_pool(op, values[0])
        case ir.Flatten():
            return values[0].reshape(len(values[0]), *op.shape)
        case ir.Concat():
            return np.concatenate(values, axis=1)
