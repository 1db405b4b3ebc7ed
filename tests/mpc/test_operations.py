"""The table of operations: complete, and one file away from a new entry."""

from __future__ import annotations

import numpy as np

from autorep.mpc.cost import cost
from autorep.mpc.local import LocalPair
from autorep.mpc.operations import OPERATIONS
from autorep.program import ir
from tests.mpc.programs import BITS, Builder, F
from tests.mpc.toy_operation import Square, SquareProtocol


def test_every_operation_of_the_program_has_a_protocol():
    assert set(ir.OP_TYPES.values()) == OPERATIONS.keys()


def test_adding_an_operation_takes_one_file(monkeypatch):
    monkeypatch.setitem(OPERATIONS, Square, SquareProtocol)
    monkeypatch.setitem(ir.OP_TYPES, "Square", Square)
    b = Builder(0)
    b.stem(2)
    b.add(Square, shape=b.last.shape, kind="sum", bits=BITS, frac=2 * F)
    program = b.program()
    x = np.random.default_rng(0).normal(0, 1, (2, *program.input.shape))
    with LocalPair(program) as pair:
        trace: dict[str, np.ndarray] = {}
        squares = pair.run(x, trace)
        counted, total = cost(program, 2), pair.ledger.total("online")
        kits = pair.dealer.deal(2).kits
    np.testing.assert_allclose(squares, trace["requantize2"] ** 2)
    assert (counted.rounds, counted.online_bytes_per_party) == (total.rounds, total.sent)
    assert [len(kit) for kit in kits] == [counted.offline_bytes(party) for party in (0, 1)]
    assert counted.layers[-1].ring_multiplications == 2 * squares.size
