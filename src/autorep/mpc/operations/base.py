"""What every operation's protocol says about itself; party, dealer, inventory and cost model only walk the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from autorep.mpc.online import Exchange
from autorep.mpc.ring import U64
from autorep.mpc.sizes import Round
from autorep.mpc.verbs import Correlation, Source
from autorep.program import ir

OpType = TypeVar("OpType", bound=ir.Op)
Masks = Sequence[Any]  # arrays (N, *shape) or None, one per input


@dataclass(frozen=True)
class Value:
    """What a party holds of an operation's result while a query runs.

    Attributes:
        data: of a wire the public X = x + ρ, of a sum this party's share.
        mask: of a wire this party's share of ρ, where some operation reads the wire as a share.
    """

    op: ir.Op
    data: np.ndarray
    mask: np.ndarray | None = None

    def share(self, party: int) -> np.ndarray:
        """This party's additive share: of a wire, P0 takes X − ρ₀ and P1 takes −ρ₁."""
        if self.op.kind == "sum":
            return self.data
        assert self.mask is not None
        return self.data - self.mask if party == 0 else U64(0) - self.mask


class Operation(Generic[OpType]):
    """The protocol of one operation for queries of `batch` images.

    Declared: the exchanges (`rounds`), the correlated randomness (`correlations`), parameters, and what it costs.
    Executed, in this order: `correlate`, by the dealer on masks in the clear and by each party on its shares, for it
    is linear; `prepare`, by each party ahead of the query; `run`, online.

    Args:
        sources: the operations whose results it reads.
        comparison: name of the protocol that compares kept ReLUs.
    """

    reads_shares: ClassVar[bool] = False  # whether wires are read as shares, so that parties must keep their masks
    opens: ClassVar[bool] = False  # whether sums are read only by opening them, under masks drawn with what is owed
    passes_on: ClassVar[bool] = False  # whether what is owed of the sums it reads is owed of its result, a sum
    opened: bool = False  # whether its result is a sum that only ever is opened; `protocols` finds out

    def __init__(self, op: OpType, sources: Sequence[ir.Op], batch: int, comparison: str) -> None:
        self.sources: tuple[ir.Op, ...] = tuple(sources)
        self.op, self.batch, self.comparison = op, batch, comparison
        self.count = batch * op.size

    def rounds(self) -> Iterator[Round]:
        """The exchanges, in order."""
        yield from ()

    def correlations(self) -> Iterator[Correlation]:
        """The correlated randomness, in the order in which `correlate` draws it."""
        yield from ()

    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters of which each party holds a share."""
        return self.op.parameter_names

    def fixed(self) -> Mapping[str, ir.Shape]:
        """Parameters that correlations multiply, with their shapes: those a dealer blinds once per model."""
        return {}

    def pack(self, parameter: str, tensor: np.ndarray, lean: bool = False) -> Any:
        """A parameter (a share, a mask or an opened value) in the form in which it is multiplied.

        A `lean` one, for what is multiplied ahead of queries only, may be slower where that saves much memory.
        """
        return tensor

    def multiplications(self) -> int:
        """Ring multiplications each party does online (direct algorithm)."""
        return 0

    def comparisons(self) -> int:
        """Values compared, at every knot."""
        return 0

    def correlate(self, source: Source, masks: Masks) -> tuple[Any, np.ndarray | None]:
        """Draw the correlations: material for `prepare`, and the result's mask or debt.

        `masks` has, for every input, a wire's mask, or what is owed of a sum (`verbs`), None if nothing is.
        """
        return None, None

    def prepare(self, material: Any, own: Mapping[str, Any]) -> Any:
        """What of `run` can be done ahead; `own` are this party's packed parameter shares."""
        return material

    def run(self, exchange: Exchange, own: Mapping[str, Any], material: Any, inputs: Sequence[Value]) -> np.ndarray:
        """Online: a wire's public value, or this party's share of a sum."""
        raise NotImplementedError(f"{type(self).__name__}.run")
