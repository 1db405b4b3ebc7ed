"""Private inference between two real processes, measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

from autorep.bench.networks import build_program, random_inputs
from autorep.bench.pair import two_parties
from autorep.bench.pi import measure
from autorep.bench.setting import Setting
from autorep.cli.main import main
from autorep.cli.measure import describe_inference, parse_relus
from autorep.errors import ConfigError, ProtocolError
from autorep.mpc.cost import cost
from autorep.program.ir import Program


@pytest.fixture(scope="module")
def program() -> Program:
    return build_program("digits_net", relus=300)


def test_the_ledger_of_two_processes_equals_the_cost_model(program: Program) -> None:
    result = measure(program, Setting(batch=2, repeats=2))
    expected = cost(program, batch=2)
    assert result["rounds"] == expected.rounds
    assert result["online_bytes_per_party"] == expected.online_bytes_per_party
    assert result["offline_bytes"] == expected.offline_bytes(0) + expected.offline_bytes(1)
    assert sum(row["bytes"] for row in result["layers"]) == result["online_bytes_per_party"]
    assert sum(row["rounds"] for row in result["layers"]) == result["rounds"]
    assert [row["name"] for row in result["layers"]] == [op.name for op in program.ops]
    assert all(row["seconds"] >= 0 for row in result["layers"])
    assert result["agrees"]
    assert result["peak_party_bytes"] > result["runtime_bytes"] > 0
    assert "rounds" in describe_inference(result)


def test_making_without_a_dealer_costs_what_the_cost_model_says_and_over_the_same_link(program: Program) -> None:
    result = measure(program, Setting(repeats=1, preparation="two-party", link="lan"))
    counted = cost(program, comparison="bits", preparation="two-party")
    assert counted.preparing is not None
    assert result["making_bytes"] == sum(counted.preparing.sent)
    assert result["making_estimate"] == counted.making_latency("lan")
    assert sum(part["bytes"] for part in result["making_parts"].values()) == pytest.approx(result["making_bytes"])
    spent = sum(part["cpu_seconds_per_party"] for part in result["making_parts"].values())
    assert spent == pytest.approx(result["making_cpu_seconds_per_party"], rel=0.3)
    assert result["dealer_seconds"] > result["making_estimate"]["network_seconds"]
    assert result["agrees"]
    assert "made by the servers" in describe_inference(result)


def test_bits_comparison_has_rounds_of_its_own_in_the_layers(program: Program) -> None:
    result = measure(program, Setting(repeats=1, comparison="bits"))
    assert result["rounds"] == cost(program, comparison="bits").rounds
    assert sum(row["rounds"] for row in result["layers"]) == result["rounds"]
    assert result["agrees"]


def test_a_throttled_link_takes_at_least_its_delay(program: Program) -> None:
    result = measure(program, Setting(repeats=1, link="wan"))
    assert result["online_seconds"] > result["rounds"] * 0.020
    assert result["online_seconds"] > result["estimate"]["network_seconds"] > result["rounds"] * 0.020


def test_every_query_uses_fresh_randomness(program: Program) -> None:
    images = random_inputs(program, 1)
    with two_parties(program) as pair:
        first, second = pair.query(images), pair.query(images)
    assert np.abs(first.logits - second.logits).max() < 1e-2
    assert first.offline_bytes == second.offline_bytes


def test_a_party_process_that_dies_ends_the_benchmark_with_an_error(program: Program) -> None:
    with two_parties(program) as pair:
        pair._processes._processes[1].kill()
        pair._processes._processes[1].wait()
        with pytest.raises((ProtocolError, OSError)):
            pair.query(random_inputs(program, 1))


def test_the_command_gives_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "pi", "--network", "digits_net", "--relus", "100", "--repeats", "1", "--json", "-"]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    promised = {"online_seconds", "rounds", "online_bytes_per_party", "offline_bytes", "offline_seconds", "layers"}
    assert promised <= result.keys()
    assert result["relus"] == 100


def test_relus_are_a_number_or_all() -> None:
    assert parse_relus("12,900") == 12_900
    assert parse_relus("all") is None
    with pytest.raises(ConfigError, match="or all"):
        parse_relus("many")
