"""Programs to measure."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autorep.bench import networks
from autorep.bench.networks import build_program, keep_relus, random_inputs
from autorep.errors import BudgetError, ConfigError
from autorep.modes import Program
from autorep.program.ir import Activation


@pytest.fixture(scope="module")
def quadratic() -> Program:
    return build_program("digits_net", relus=0)


def layers(program: Program) -> list[Activation]:
    return [op for op in program.ops if isinstance(op, Activation)]


def test_exactly_the_budget_is_kept_in_every_layer_alike() -> None:
    program = build_program("digits_net", relus=410)
    assert program.relu_count == 410
    for op in layers(program):
        assert abs(op.kept_count - 410 * op.size / 4096) <= 1


def test_inputs_stay_within_what_a_program_takes(quadratic: Program) -> None:
    low, high = quadratic.info["input_range"]
    images = random_inputs(quadratic, 4)
    assert images.min() >= low
    assert images.max() <= high
    narrow = dataclasses.replace(quadratic, info={**quadratic.info, "input_range": [-1.0, 1.0]})
    assert np.abs(images).max() > 1 >= np.abs(random_inputs(narrow, 4)).max()


def test_all_relus_leave_no_quadratic() -> None:
    program = build_program("digits_net")
    assert program.relu_count == 4096
    assert not any(key.endswith(".a") for key in program.parameters)


def test_fixed_point_follows_the_random_network(quadratic: Program) -> None:
    images = random_inputs(quadratic, 4)
    exact = quadratic.run(images, mode="float")
    assert np.abs(quadratic.run(images, mode="fixed") - exact).max() < 1e-2
    assert exact.std() > 0


def test_an_impossible_budget_is_refused_with_the_valid_range() -> None:
    with pytest.raises(BudgetError, match="4,096 ReLUs; cannot keep 5,000"):
        build_program("digits_net", relus=5000)


@pytest.mark.parametrize("relus", [0, 1, 1000, 4096])
def test_another_budget_changes_only_which_relus_are_kept(quadratic: Program, relus: int) -> None:
    program = keep_relus(quadratic, relus)
    assert program.relu_count == relus
    for before, after in zip(layers(quadratic), layers(program)):
        assert (before.bits, before.open_bits, before.window) == (after.bits, after.open_bits, after.window)
        assert len(np.unique(after.kept)) == after.kept_count
    images = random_inputs(program, 2)
    assert np.abs(program.run(images, mode="fixed") - program.run(images, mode="float")).max() < 1e-2


def test_a_network_that_pads_by_its_image_size_is_built_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "compile_random", lambda model, *_: model)
    stems = [build_program("efficientnet_lite0", size)._conv_stem for size in (33, 224)]  # type: ignore[attr-defined]
    assert [type(stem.pad).__name__ for stem in stems] == ["Identity", "ZeroPad2d"]


def test_layers_may_be_straight_lines_and_then_keep_nothing() -> None:
    lines = ["layer1.0.relu1", "layer2.0.relu1"]
    program = build_program("digits_net", lines=lines)
    assert program.relu_count == 4096 - 1024 - 512
    assert len(layers(program)) == len(layers(build_program("digits_net"))) - 2
    images = random_inputs(program, 2)
    assert np.abs(program.run(images, mode="fixed") - program.run(images, mode="float")).max() < 1e-2
    with pytest.raises(BudgetError, match="2,560 ReLUs; cannot keep 3,000"):
        build_program("digits_net", relus=3000, lines=lines)
    with pytest.raises(ConfigError, match=r"lines relu9: the network has relu, layer1\.0\.relu1"):
        build_program("digits_net", lines=["relu9"])
