"""The comparison protocol that occupies servers and links the least, by the cost model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autorep.mpc.choice import choices
from autorep.mpc.cost import LINKS, cost
from tests.mpc.programs import Builder


def network(kept: int):
    """One activation layer of 65,536 elements."""
    b = Builder(0, (64, 32, 32))
    b.stem(64)
    b.conv(64, kernel=1)
    b.activation(0.0)
    b.ops[-1] = dataclasses.replace(b.last, kept=np.arange(kept))
    b.head(2)
    return b.program()


def test_few_relus_are_worth_no_round_and_many_are_worth_six():
    """A round over the WAN takes as long as 250 kB: some 600 keys' worth of products, some 800 short keys."""
    assert [choices(network(kept)).best("wan") for kept in (50, 3_000, 60_000)] == ["dcf", "short", "bits"]


@pytest.mark.parametrize("link", LINKS)
def test_the_best_is_the_least_and_counts_latency_and_the_larger_kit(link):
    program = network(3_000)
    found = choices(program)
    seconds = {name: found.seconds(name, link) for name in found.costs}
    assert set(seconds) == {"dcf", "short", "bits"}
    assert seconds[found.best(link)] == min(seconds.values())
    counted = cost(program, 1, "short")
    assert counted.offline_bytes(1) > counted.offline_bytes(0)
    assert seconds["short"] == counted.latency(link)["seconds"] + counted.offline_bytes(1) / LINKS[link].rate


def test_what_is_told_is_what_is_chosen():
    found = choices(network(3_000))
    told = found.to_json()
    assert told["best"] == {link: found.best(link) for link in LINKS}
    for name, row in told["choices"].items():
        assert row["offline_bytes"] == sum(found.costs[name].offline_bytes(party) for party in (0, 1))
        assert row["rounds"] == found.costs[name].rounds
