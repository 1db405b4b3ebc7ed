"""Sources of correlations: the dealer's and a toy one satisfy every verb's relation, and either answers queries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from autorep.errors import MaterialError
from autorep.mpc import verbs
from autorep.mpc.dealt import DEALT
from autorep.mpc.local import LocalPair, join_output, share_input
from autorep.mpc.online import Exchange
from autorep.mpc.operations import only_opened, protocols
from autorep.mpc.party import Party
from autorep.mpc.ring import reduce
from autorep.mpc.transport import memory_pair
from autorep.program import ir
from autorep.program.files import share_parameters
from autorep.program.fixed import run_fixed
from tests.mpc.programs import mixed_program, watched_dealer
from tests.mpc.relations import check_relations, recorded
from tests.mpc.toy_source import OpenPreparation

COMMON = {verbs.Mask, verbs.Truncation, verbs.Product, verbs.LinearImage, verbs.Quadratic}
OF_COMPARISON = {
    "dcf": {verbs.ComparisonKeys, verbs.BitKeys},
    "short": {verbs.SignKeys, verbs.Selection},
    "bits": {verbs.Bits, verbs.BitTriples, verbs.Selection},
}


@pytest.mark.parametrize("comparison", ["dcf", "short", "bits"])
@pytest.mark.parametrize("batch", [1, 2])
def test_dealt_kits_satisfy_every_relation(comparison, batch):
    program = mixed_program(6)
    with LocalPair(program, comparison) as pair, watched_dealer() as dealt:
        kits = pair.dealer.deal(batch).kits
        sources = [pair.parties[i].source(kits[i]) for i in (0, 1)]
        draws = recorded(program, sources[0]), recorded(program, sources[1])
    assert check_relations(program, sources[0], draws, dealt) == COMMON | OF_COMPARISON[comparison]


def test_a_dealer_owes_only_what_is_opened_next_and_takes_it_off_the_mask():
    program = mixed_program(6)
    with LocalPair(program) as pair, watched_dealer() as dealt:
        kits = pair.dealer.deal(1).kits
        draws = [recorded(program, pair.parties[i].source(kits[i])) for i in (0, 1)]
    opened = only_opened(program)
    assert program.output.name not in opened
    indebted = 0
    for (c, _, share0), (_, _, share1) in zip(*draws, strict=True):
        operands, result, owed = dealt[c.label]
        assert (owed is not None) == (isinstance(c, verbs.Quadratic) or getattr(c, "opened", False))
        if isinstance(c, verbs.Mask):
            debt = operands[0] if operands else np.uint64(0)
            np.testing.assert_array_equal(reduce(share0 + share1 - debt, c.bits), result)
            indebted += len(operands)
    openings = sum(isinstance(op, ir.Activation | ir.Requantize | ir.Sign) for op in program.ops)
    assert indebted == openings + sum(isinstance(op, ir.Activation) and op.quad_count > 0 for op in program.ops)


def test_a_wrong_share_is_noticed_by_the_relations():
    """The check itself: one bit in any kind of result makes it fail."""
    program = mixed_program(6)
    for comparison in ("dcf", "short", "bits"):
        with LocalPair(program, comparison) as pair, watched_dealer() as dealt:
            kits = pair.dealer.deal(1).kits
            sources = [pair.parties[i].source(kits[i]) for i in (0, 1)]
            draws = recorded(program, sources[0]), recorded(program, sources[1])
        for kind in (COMMON | OF_COMPARISON[comparison]) - {verbs.Mask}:
            draw = next(entry for entry in draws[1] if type(entry[0]) is kind)
            target = draw[2]
            while isinstance(target, tuple):
                target = target[-1 if kind is verbs.BitTriples else 0]
            bit = np.uint64(1 << (1 if kind is verbs.SignKeys else 8))  # bit 1 of a short key's root always counts
            target.reshape(-1)[0] ^= bit
            with pytest.raises(AssertionError):
                check_relations(program, sources[0], ([d for d in draws[0] if d[0] == draw[0]], [draw]), dealt)
            target.reshape(-1)[0] ^= bit


def test_a_kit_source_gives_each_correlation_once():
    program = mixed_program(6)
    with LocalPair(program) as pair:
        source = pair.parties[0].source(pair.dealer.deal(1).kits[0])
    mask = next(protocols(program)[0].correlations())
    source.draw(mask)
    with pytest.raises(MaterialError, match="used already"):
        source.draw(mask)


def test_every_declared_correlation_is_drawn_in_order():
    program = mixed_program(6)
    for comparison in ("dcf", "short", "bits"):
        declared = [c for operation in protocols(program, 2, comparison) for c in operation.correlations()]
        assert len({c.label for c in declared}) == len(declared)
        assert {type(c) for c in declared} <= DEALT.keys()
        with LocalPair(program, comparison) as pair:
            source = pair.parties[1].source(pair.dealer.deal(2).kits[1])
            assert [c for c, _, _ in recorded(program, source)] == declared


def test_another_source_takes_one_file():
    """Two parties that prepare by `toy_source`: same engine, same answer."""
    program, batch = mixed_program(6), 2
    x = np.random.default_rng(0).normal(0, 1, (batch, *program.input.shape))
    links, shares, inputs = memory_pair(), share_parameters(program), share_input(program, x)

    def one(i: int):
        exchange = Exchange(i, links[i])
        preparation = OpenPreparation(exchange)
        party = Party(program, shares[i], i, "bits")
        party.setup(preparation)
        draws = recorded(program, preparation.source(bytes([batch])))
        query = party.prepare(preparation.source(bytes([batch])).made_for(party))
        return draws, party.run(links[i], query, inputs[i]), preparation.source(bytes([batch]))

    with ThreadPoolExecutor(2) as pool:
        (draws0, share0, source), (draws1, share1, _) = pool.map(one, (0, 1))
    assert check_relations(program, source, (draws0, draws1)) == COMMON | OF_COMPARISON["bits"]
    assert np.abs(join_output(program, share0, share1) - run_fixed(program, x)).max() < 5e-3
