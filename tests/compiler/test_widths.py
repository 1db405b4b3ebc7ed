"""Widths follow the ranges, every constraint of the protocol holds, refusals name the layer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.errors import ConfigError, RangeError
from autorep.program.fixed import run_fixed
from autorep.program.ir import Activation, Concat, Gather, Input, MaxPool, Op, Program, Requantize
from autorep.replacement import replace_activations_
from tests.program.networks import Network, images, mask_, networks


def assert_plan_holds(program: Program) -> None:
    """What the engine relies on."""
    for op in program.ops:
        sources: list[Op] = [program[name] for name in op.inputs]
        assert 1 <= op.bits <= 64
        if isinstance(op, Activation | Requantize):
            assert op.open_bits <= sources[0].bits
        elif not isinstance(op, Input):
            assert all(op.bits <= source.bits for source in sources), op.name
        if isinstance(op, Activation):
            assert op.in_frac == sources[0].frac
            shift = op.in_frac - op.kept_frac
            if op.kept_count:
                assert 2 * op.bits + max(0, op.bits - op.open_bits + shift) <= 128
                assert op.window - op.kept_frac <= op.open_bits - 2 - op.in_frac
            if op.quad_count:
                assert op.quad_open_bits <= 64
                assert op.quad_shift >= 0
                assert op.quad_frac <= op.in_frac
        if isinstance(op, Requantize):
            assert op.shift == sources[0].frac - op.frac >= 0
            assert not op.one_round or op.bits + op.shift <= sources[0].bits
        if isinstance(op, MaxPool):
            assert op.window < op.bits
        if isinstance(op, Concat | Gather):
            assert len({source.frac for source in sources}) == 1


@settings(max_examples=10, deadline=None)
@given(networks())
def test_constraints_hold_for_random_networks(network):
    assert_plan_holds(compile_program(network, images(16)))


class Scaled(nn.Module):
    """Pre-activations of a chosen size in the middle layer."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.second.weight.mul_(factor)
            self.head.weight.div_(factor)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 13))
def test_widths_grow_with_the_range_and_fixed_still_follows_float(power):
    torch.manual_seed(0)
    network, x = Scaled(2.0**power), torch.randn(64, 8)
    program = compile_program(network, x)
    assert_plan_holds(program)
    opened = program["relu.2"]
    assert isinstance(opened, Activation)
    largest = next(row["largest"] for row in program.info["headroom"] if row["layer"] == "relu.2")
    assert largest * 4 < 2.0 ** (opened.open_bits - 2 - opened.in_frac)
    assert np.abs(program.run(x.numpy()) - run_fixed(program, x.numpy())).max() < 0.01


def test_small_ranges_share_the_common_width():
    program = compile_program(Network(["residual", "strided", "maximum"]), images(16))
    assert {op.bits for op in program.ops if not isinstance(op, Input)} == {44, 64}
    assert {op.open_bits for op in program.ops if isinstance(op, Activation)} == {44}


def test_windows_cover_the_kept_elements_with_margin():
    network, x = Network(["conv"]), images(32)
    program = compile_program(network, x, margin=4.0)
    wide = compile_program(network, x, margin=16.0)
    name = "blocks.0.1"
    first, second = program[name], wide[name]
    assert isinstance(first, Activation)
    assert isinstance(second, Activation)
    assert second.window == first.window + 2
    assert first.window >= 18


def test_headroom_is_what_the_layer_really_tolerates():
    """Scaling the input up to the stated factor keeps fixed right; well beyond it the layer wraps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 2, bias=False))
    x = torch.randn(32, 6)
    program = compile_program(network, x)
    rows = {row["layer"]: row for row in program.info["headroom"]}
    assert set(rows) == {"1", "2"}
    assert rows["1"]["factor"] >= 4
    assert rows["1"]["bits"] == pytest.approx(np.log2(rows["1"]["factor"]))
    assert rows["1"]["limited_by"] == "window"
    ring = 2.0 ** (program["1"].open_bits - 2 - program["1"].in_frac) / rows["1"]["largest"]

    def error(factor: float) -> float:
        scaled = (x * factor).numpy()
        return np.abs(program.run(scaled) - run_fixed(program, scaled)).max()

    assert error(0.99 * min(rows["1"]["factor"], rows["2"]["factor"])) < 0.5
    assert error(4.1 * ring) > 100


def quadratics(factor: float) -> Scaled:
    """The same network without any comparison left."""
    torch.manual_seed(0)
    network, x = Scaled(factor), torch.randn(64, 8)
    replacement = replace_activations_(network, x)
    replacement.calibrate_(network, [x])
    replacement.finalize_(0)
    with torch.no_grad():
        network.head.weight.div_(factor)
    return network


def test_precision_is_lowered_before_refusing_and_refusal_names_the_layer():
    x = torch.randn(64, 8)
    assert compile_program(quadratics(1.0), x).input.frac == 16
    coarse = compile_program(quadratics(10_000.0), x)
    assert 12 <= coarse.input.frac < 16
    assert_plan_holds(coarse)
    with pytest.raises(RangeError, match=r"layer 'relu.* reaches \|value\| = .*Remedies") as refusal:
        compile_program(quadratics(1e7), x)
    assert "12 fractional bits" in str(refusal.value)


def test_values_that_are_not_finite_are_refused_by_layer():
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        network[2].weight.fill_(float("nan"))
    with pytest.raises(RangeError, match=r"'2' \(Linear\)"):
        compile_program(network, torch.randn(4, 2))


def test_pooled_inputs_get_finer_weights():
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

        def forward(self, x):
            return self.fc(torch.relu(self.conv(x)).mean((2, 3)))

    torch.manual_seed(0)
    x = images(4, shape=(3, 96, 96))
    program = compile_program(Pooled(), x)
    assert program["fc"].weight_frac > 16
    assert np.abs(program.run(x.numpy()) - run_fixed(program, x.numpy())).max() < 3e-3


def test_quadratic_precision_follows_the_data():
    network, x = Network(["conv"]), images(16)
    mask_(network, (0.0,))
    program = compile_program(network, x)
    op = program["blocks.0.1"]
    assert isinstance(op, Activation)

    def error(**changes: int) -> float:
        ops = tuple(dataclasses.replace(o, **changes) if o.name == op.name else o for o in program.ops)
        other = dataclasses.replace(program, ops=ops)
        return float(np.mean((other.run(x.numpy()) - run_fixed(other, x.numpy())) ** 2))

    best = error()
    assert best <= 1.5 * error(lead_frac=20, quad_frac=8)
    assert best <= 1.5 * error(lead_frac=4, quad_frac=16)


def test_outliers_can_be_set_aside_and_the_others_stay_right():
    torch.manual_seed(0)
    network, x = quadratics(1.0), torch.randn(64, 8)
    x[7] *= 1e6
    x[9] *= 1e30
    with pytest.raises(RangeError, match="not finite for 1 of 64"):
        compile_program(network, x)
    program = compile_program(network, x, outliers=0.04)
    assert program.info["calibration_outliers"] == 2
    usual = np.delete(x.numpy(), [7, 9], axis=0)
    assert np.abs(program.run(usual) - run_fixed(program, usual)).max() < 5e-3
    with pytest.raises(ConfigError, match="outliers"):
        compile_program(network, x, outliers=0.7)
