"""Both parties, and the dealer if any, in one process: for experiments, tests and `program.run("secure")`.

The protocol is the real one, over an in-memory link; only the separation of the parties is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from autorep.errors import CheckpointError, ProtocolError
from autorep.mpc.blinding import BlindedModel
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.cost import cost
from autorep.mpc.dealer import Dealer
from autorep.mpc.party import Party
from autorep.mpc.prg import fresh_seed, stream
from autorep.mpc.transport import Ledger, Transport, memory_pair
from autorep.mpc.two_party.model import Maker, TwoPartyModel
from autorep.mpc.two_party.names import PreparationName, check_parameters, checked_comparison
from autorep.program import ir
from autorep.program.files import share_parameters

T = TypeVar("T")
Kit = bytes | memoryview

KITS_AT_ONCE = 1 << 30  # bytes of both kits of images that run together; one image runs whatever its kits take


def share_input(program: ir.Program, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A client's two shares of a batch of images (N, *input shape)."""
    encoded = ir.encode_input(x, program.input.frac, program.info.get("input_range"))
    share0 = stream(fresh_seed(), "client/input", encoded.shape)
    return share0, encoded - share0


def join_output(program: ir.Program, share0: np.ndarray, share1: np.ndarray) -> np.ndarray:
    """The answer from the two servers' shares."""
    return ir.decode(share0 + share1, program.output.bits, program.output.frac)


class LocalPair:
    """Context manager: two parties in threads, ready to answer; with a dealer, or preparing between themselves.

    >>> with LocalPair(program) as pair:      # doctest: +SKIP
    ...     logits = pair.run(images)
    ...     pair.ledger.total("online").rounds
    """

    def __init__(
        self,
        program: ir.Program,
        comparison: ComparisonName | None = None,
        links: tuple[Transport, Transport] | None = None,
        timeout: float = 120.0,
        preparation: PreparationName = "dealer",
    ) -> None:
        """`comparison` is `dcf` with a dealer, and `bits`, which needs none, otherwise."""
        if not program.parameters:
            raise CheckpointError("secure run: this program has no parameters; load the model owner's copy")
        self.program, self.preparation = program, preparation
        self.comparison = checked_comparison(preparation, comparison)
        counted = cost(program, 1, self.comparison, preparation)
        self._at_once = max(1, KITS_AT_ONCE // (counted.offline_bytes(0) + counted.offline_bytes(1)))
        shares = share_parameters(program)
        self.parties = tuple(Party(program, shares[i], i, self.comparison) for i in (0, 1))
        self._links = links or memory_pair(timeout)
        self._preparing = memory_pair(timeout)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="autorep-party")
        if preparation == "dealer":
            self.dealer = Dealer(program, comparison=self.comparison)
        else:
            check_parameters(program, preparation)

    def __enter__(self) -> LocalPair:
        if self.preparation == "dealer":
            blinding = self.dealer.blinding
            self._both(
                lambda i: self.parties[i].setup(
                    BlindedModel(self.program, i, self._links[i], blinding.seeds[i], blinding.id)
                )
            )
        else:
            self._makers = self._both(self._maker)
        return self

    def _maker(self, i: int) -> Maker:
        model = TwoPartyModel(self.program, i, self.preparation)
        self.parties[i].setup(model)
        return Maker(model, self._preparing[i])

    def __exit__(self, *_: Any) -> None:
        for link in (*self._links, *self._preparing):
            link.close()
        self._threads.shutdown()

    @property
    def ledger(self) -> Ledger:
        """What party 0 sent and received, offline (weights opened once) and online."""
        return self._links[0].ledger

    @property
    def preparing_ledger(self) -> Ledger:
        """What party 0 sent and received while the two prepared without a dealer."""
        return self._preparing[0].ledger

    def kits(self, batch: int = 1, owed: dict[str, np.ndarray] | None = None) -> tuple[Kit, Kit]:
        """Both parties' kits of one query of `batch` images; `owed` receives what a dealer owes of every sum."""
        if self.preparation == "dealer":
            return self.dealer.deal(batch, owed).kits
        first, second = self._both(lambda i: self._makers[i].make(1, batch)[0][1])
        return first, second

    def run(self, x: np.ndarray, trace: dict[str, np.ndarray] | None = None) -> np.ndarray:
        """Logits of any number of images, so many at once as memory is meant to hold the kits of (KITS_AT_ONCE).

        `trace` receives every operation's value in clear.
        """
        portions = [x[start : start + self._at_once] for start in range(0, len(x), self._at_once)] or [x]
        traces: list[dict[str, np.ndarray]] = [{} for _ in portions]
        answers = [self._query(part, None if trace is None else seen) for part, seen in zip(portions, traces)]
        if trace is not None:
            trace.update({op.name: np.concatenate([seen[op.name] for seen in traces]) for op in self.program.ops})
        return np.concatenate(answers)

    def _query(self, x: np.ndarray, trace: dict[str, np.ndarray] | None) -> np.ndarray:
        """Logits of a batch, by one kit of each party."""
        owed: dict[str, np.ndarray] = {}
        kits = self.kits(len(x), owed if trace is not None else None)
        inputs = share_input(self.program, x)
        traces: list[dict[str, np.ndarray]] = [{}, {}]

        def one(i: int) -> np.ndarray:
            party = self.parties[i]
            query = party.prepare(party.source(kits[i]), traced=trace is not None)
            return party.run(self._links[i], query, inputs[i], traces[i] if trace is not None else None)

        answer = join_output(self.program, *self._both(one))
        for op in self.program.ops if trace is not None else ():
            assert trace is not None
            value = traces[0][op.name] + traces[1][op.name] + owed.get(op.name, np.uint64(0))
            trace[op.name] = ir.decode(value, op.bits, op.frac)
        return answer

    def _both(self, work: Callable[[int], T]) -> tuple[T, T]:
        """Run the two parties side by side; when one fails the other is told, and the first cause is raised."""

        def guarded(i: int) -> T:
            try:
                return work(i)
            except Exception as error:  # whatever stops one party: the other would wait for it
                for link in (self._links[i], self._preparing[i]):
                    link.abort(f"party {i}: {type(error).__name__}")
                raise

        futures = [self._threads.submit(guarded, i) for i in (0, 1)]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise next((e for e in errors if not isinstance(e, ProtocolError)), errors[0])
        return futures[0].result(), futures[1].result()


def run_secure(
    program: ir.Program,
    x: np.ndarray,
    trace: bool = False,
    comparison: ComparisonName | None = None,
    preparation: PreparationName = "dealer",
) -> np.ndarray | tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits of a batch between two local parties; with `trace` also every operation's value."""
    values: dict[str, np.ndarray] | None = {} if trace else None
    with LocalPair(program, comparison, preparation=preparation) as pair:
        logits = pair.run(x, values)
    return logits if values is None else (logits, values)
