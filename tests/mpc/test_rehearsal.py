"""A rehearsal on this machine, and the steady state that follows from it."""

from __future__ import annotations

import dataclasses

import pytest

from autorep.mpc.cost import LINKS, cost
from autorep.mpc.machines import SERVICE_SECONDS, steady_state
from autorep.mpc.rehearsal import LinkSpeed, Rehearsal, rehearse
from tests.mpc.programs import Builder


def program(channels: int):
    b = Builder(0, (channels, 16, 16))
    b.stem(channels)
    b.conv(channels, kernel=3)
    b.activation(0.1)
    b.head(10)
    return b.program()


def test_a_network_with_more_work_is_predicted_to_take_longer():
    """By its own processor time, over the same link; how long rounds take here and now is another question."""
    found = []
    for each in (program(4), program(64)):
        rehearsed = rehearse(each)
        assert rehearsed.link.round_seconds > 0
        same_link = dataclasses.replace(rehearsed, link=LinkSpeed(0.001, 1e-9))
        found.append(same_link.latency(cost(each), "loopback")["seconds"])
    assert 0 < found[0] < found[1]


def test_rounds_and_bytes_of_a_link_are_added_to_what_was_measured():
    counted = cost(program(4))
    rehearsed = Rehearsal(0.5, 0.25, 1.0, LinkSpeed(0.125, 0.0))
    seconds = rehearsed.latency(counted, "wan")
    wan = LINKS["wan"]
    assert seconds["compute_seconds"] == pytest.approx(1 + 0.125 * counted.rounds)
    expected = counted.rounds * wan.one_way_delay + counted.online_bytes_per_party / wan.rate
    assert seconds["network_seconds"] == pytest.approx(expected)
    assert rehearsed.latency(counted, "loopback")["network_seconds"] == 0


def test_the_busiest_resource_decides_how_many_queries_a_second_there_are():
    counted = cost(program(4))
    slow_dealer = steady_state(counted, Rehearsal(0.5, 0.01, 0.01, LinkSpeed(0, 0)), "lan", 2, 0.36)
    assert (slow_dealer.busiest, slow_dealer.per_second) == ("the dealer's processor", 4)
    assert slow_dealer.euros_per_million == pytest.approx(3 * 0.36 / 3600 / 4 * 1e6)
    slow_server = steady_state(counted, Rehearsal(0.01, 0.2, 0.3, LinkSpeed(0, 0)), "lan", 1, 1.0)
    assert slow_server.busiest == "a server's processor"
    assert slow_server.per_second == pytest.approx(1 / (0.5 + SERVICE_SECONDS))
    thin = steady_state(counted, Rehearsal(1e-6, 1e-6, 1e-6, LinkSpeed(0, 0)), "wan", 64, 1.0)
    assert thin.busiest == "the dealer's link"
