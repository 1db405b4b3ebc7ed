"""Every network of the registry, privately: with known masks the secure answer equals fixed point in every bit."""

from __future__ import annotations

import numpy as np
import pytest

from autorep.bench.networks import build_program, random_inputs
from autorep.modes import Program
from autorep.mpc.local import LocalPair
from autorep.program import ir
from autorep.program.fixed import FixedProgram
from tests.mpc.programs import DealtRounding, run_known

SEEDS = (b"\x05" * 32, b"\x06" * 32)
CLOSE = 0.01  # of float and fixed logits, in units of the largest logit


def check_equal_in_every_bit(program: Program) -> None:
    x = random_inputs(program, 1)
    with LocalPair(program) as pair:
        answer = run_known(pair, x, SEEDS)
    expected = FixedProgram(program).run(x, DealtRounding(pair.dealer, SEEDS, len(x)))
    np.testing.assert_array_equal(answer, expected)
    exact = program.run(x, mode="float")
    decoded = ir.decode(expected, program.output.bits, program.output.frac)
    assert np.abs(decoded - exact).max() < CLOSE * max(1.0, np.abs(exact).max())


@pytest.mark.parametrize(
    ("network", "size", "relus"),
    [
        ("digits_net", 8, 100),
        ("resnet20", 32, 5_652),
        ("resnet18", 8, 1_000),
        ("wide_resnet22_8", 8, 1_000),
        ("efficientnet_b2", 32, 2_000),
        ("efficientnet_lite0", 32, 2_000),
        ("efficientnet_lite0", 32, None),
    ],
)
def test_small_input_secure_equals_fixed(network, size, relus):
    program = build_program(network, size, relus)
    if relus is not None:
        assert program.relu_count == relus
    check_equal_in_every_bit(program)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("network", "size", "relus"),
    [
        ("resnet18", 32, 12_900),
        ("resnet18", 32, 491_520),
        ("resnet18", 64, 55_000),
        ("resnet18", 64, 1_966_080),
        ("wide_resnet22_8", 32, 120_000),
        ("wide_resnet22_8", 32, 1_359_872),
        ("wide_resnet22_8", 64, 300_000),
        ("efficientnet_b2", 224, 50_000),
        ("efficientnet_b2", 224, 500_000),
    ],
)
def test_paper_size_secure_equals_fixed(network, size, relus):
    program = build_program(network, size, relus)
    assert program.relu_count == relus
    check_equal_in_every_bit(program)
