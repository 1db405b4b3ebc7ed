"""The cost model against what a real run sends and consumes."""

from __future__ import annotations

import pytest

from autorep.cli.named import sketch
from autorep.compiler.compile import compile_program
from autorep.errors import BudgetError
from autorep.mpc.cost import cost
from autorep.mpc.local import LocalPair
from tests.program.networks import Network, images, mask_


@pytest.mark.parametrize("batch", [1, 3])
def test_cost_equals_ledger_and_kits(batch):
    network = Network(["residual", "maximum", "gate"])
    mask_(network, (0.2, 0.0, 1.0))
    program = compile_program(network, images(8))
    expected = cost(program, batch)
    with LocalPair(program) as pair:
        pair.run(images(batch).numpy())
        total = pair.ledger.total("online")
        kits = pair.dealer.deal(batch).kits
    assert (total.rounds, total.sent) == (expected.rounds, expected.online_bytes_per_party)
    assert [len(kit) for kit in kits] == [expected.offline_bytes(0), expected.offline_bytes(1)]
    assert cost(program.public(), batch).online_bytes_per_party == expected.online_bytes_per_party


def test_resnet18_costs_what_the_design_says():
    document = cost(sketch("resnet18", 32, 12_900, 100)).to_json()
    assert document["rounds"] == 34
    assert document["comparisons"] == 12_900
    assert 7.0e6 < document["online_bytes_per_party"] < 7.3e6
    assert document["ring_multiplications"] == sum(layer["ring_multiplications"] for layer in document["layers"])
    assert document["offline_bytes"] == document["offline_bytes_party0"] + document["offline_bytes_party1"]
    latency = document["latency"]
    assert latency["loopback"]["seconds"] < latency["lan"]["seconds"] < latency["wan"]["seconds"]


def test_fewer_relus_cost_less_in_the_same_rounds():
    few, many = (cost(sketch("digits_net", relus=count)) for count in (100, 1000))
    assert few.rounds == many.rounds
    assert few.online_bytes_per_party > 0
    assert few.offline_bytes(0) < many.offline_bytes(0)
    with pytest.raises(BudgetError, match="ReLUs; cannot keep"):
        sketch("digits_net", relus=10**9)
