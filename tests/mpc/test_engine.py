"""Secure runs against the fixed-point interpreter and the inventory."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autorep.mpc import local
from autorep.mpc.cost import cost
from autorep.mpc.inventory import program_items, program_rounds
from autorep.mpc.local import LocalPair, run_secure
from autorep.mpc.transport import FRAME_OVERHEAD
from autorep.program import ir
from autorep.program.fixed import FixedProgram, run_fixed
from tests.mpc.programs import Builder, DealtRounding, mixed_program, run_known

SEEDS = (b"\x01" * 32, b"\x02" * 32)


def random_program(data: st.DataObject) -> ir.Program:
    """Blocks in random order, masks from none to all."""
    b = Builder(data.draw(st.integers(0, 2**32 - 1)), shape=(data.draw(st.integers(1, 3)), 8, 8))
    b.stem(4)
    for _ in range(data.draw(st.integers(1, 4))):
        kept = data.draw(st.sampled_from([0.0, 0.2, 1.0]))
        block = data.draw(st.sampled_from(["conv", "residual", "affine", "max", "sum", "requantize", "depthwise"]))
        start = b.last
        if block == "max" and min(start.shape[1:]) >= 3:
            b.max_pool(*data.draw(st.sampled_from([(2, 2, 0), (3, 2, 1), (3, 1, 1)])))
            continue
        if block == "sum" and min(start.shape[1:]) % 2 == 0:
            b.sum_pool(2)
        b.conv(4, kernel=data.draw(st.sampled_from([1, 3])), groups=4 if block == "depthwise" else 1)
        if block == "residual":
            b.residual(start)
        if block in ("requantize", "affine"):
            b.requantize()
        if block == "affine":
            b.affine()
        if b.last.kind == "sum":
            b.activation(kept)
    b.head(3)
    return b.program()


@pytest.mark.parametrize("comparison", ["dcf", "short", "bits"])
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_secure_equals_fixed_bit_for_bit_on_random_programs(comparison, data):
    program = random_program(data)
    batch = data.draw(st.integers(1, 3))
    x = np.random.default_rng(0).normal(0, 1, (batch, *program.input.shape))
    with LocalPair(program, comparison) as pair:
        answer = run_known(pair, x, SEEDS)
    expected = FixedProgram(program).run(x, DealtRounding(pair.dealer, SEEDS, batch))
    np.testing.assert_array_equal(answer, expected)


@pytest.mark.parametrize("comparison", ["dcf", "short", "bits"])
def test_every_operation_together_equals_fixed(comparison):
    program = mixed_program(3)
    x = np.random.default_rng(1).normal(0, 1, (2, *program.input.shape))
    with LocalPair(program, comparison) as pair:
        answer = run_known(pair, x, SEEDS)
    np.testing.assert_array_equal(answer, FixedProgram(program).run(x, DealtRounding(pair.dealer, SEEDS, 2)))


def test_real_dealer_differs_by_rounding_only():
    program = mixed_program(4)
    x = np.random.default_rng(2).normal(0, 1, (2, *program.input.shape))
    logits, trace = run_secure(program, x, trace=True)
    assert np.abs(logits - run_fixed(program, x)).max() < 5e-3
    assert trace.keys() == {op.name for op in program.ops}
    np.testing.assert_allclose(trace[program.output.name], logits)


@pytest.mark.parametrize("preparation", ["dealer", "ot"])
def test_images_whose_kits_are_large_run_one_after_another(preparation, monkeypatch):
    program = mixed_program(4)
    x = np.random.default_rng(2).normal(0, 1, (3, *program.input.shape))
    counted = cost(program, 1, "bits", preparation)
    monkeypatch.setattr(local, "KITS_AT_ONCE", 2 * (counted.offline_bytes(0) + counted.offline_bytes(1)))
    trace: dict[str, np.ndarray] = {}
    with LocalPair(program, "bits", preparation=preparation) as pair:
        asked, query = [], pair._query
        monkeypatch.setattr(pair, "_query", lambda part, seen: asked.append(len(part)) or query(part, seen))
        logits = pair.run(x, trace if preparation == "dealer" else None)
    assert asked == [2, 1]
    assert np.abs(logits - run_fixed(program, x)).max() < 5e-3
    if preparation == "dealer":
        np.testing.assert_allclose(trace[program.output.name], logits)


@pytest.mark.parametrize("comparison", ["dcf", "short", "bits"])
def test_ledger_equals_plan(comparison):
    program = mixed_program(5)
    batch = 2
    x = np.zeros((batch, *program.input.shape))
    with LocalPair(program, comparison) as pair:
        pair.run(x)
        total, layers = pair.ledger.total("online"), pair.ledger.layers("online")
        dealt = pair.dealer.deal(batch)
    expected = program_rounds(program, batch, comparison)
    assert total.rounds == len(expected)
    assert total.sent == total.received == sum(r.bytes + FRAME_OVERHEAD for r in expected)
    assert list(layers) == [r.label for r in expected]
    expected_items = program_items(program, batch, comparison)
    for party in (0, 1):
        body = sum(item.bytes_to(party) for item in expected_items)
        assert len(dealt.kits[party]) == body + 160 + 32


def test_rounds_do_not_grow_with_kept_relus_and_bytes_are_linear():
    def totals(kept: int) -> tuple[int, int, int]:
        b = Builder(0)
        b.stem(4)
        b.conv(4)
        b.activation(0.0)
        b.ops[-1] = dataclasses.replace(b.last, kept=np.arange(kept))
        b.head(2)
        expected = program_rounds(b.program())
        offline = sum(item.bytes_to(0) for item in program_items(b.program()))
        return len(expected), sum(r.bytes for r in expected), offline

    (rounds8, bytes8, keys8), (rounds16, bytes16, keys16), (rounds32, bytes32, keys32) = map(totals, (8, 16, 32))
    assert rounds8 == rounds16 == rounds32
    assert (bytes32 - bytes16) == 2 * (bytes16 - bytes8)
    assert keys8 == 8 * 654
    assert (keys16, keys32) == (16 * 654, 32 * 654)


def test_full_range_of_activations_gives_no_catastrophe():
    """10,000 values over the whole legal range |y| < 2**(open_bits − 2 − in_frac) through quadratic and ReLU."""
    count = 10_000
    b = Builder(0, shape=(2, 100, 50))
    op = b.add(ir.Affine, shape=b.last.shape, kind="sum", bits=44, frac=32, weight_frac=16)
    b.parameters[f"{op.name}.weight"], b.parameters[f"{op.name}.bias"] = np.ones(2), np.zeros(2)
    act = b.activation(0.5, window=27, quad_frac=12)
    b.parameters[f"{act.name}.a"] = np.array([2.0**-6, 2.0**-7])
    program = b.program()
    limit = 2.0**10 - 2.0**-10
    x = np.random.default_rng(0).uniform(-limit, limit, (1, 2, 100, 50))
    x.reshape(-1)[:4] = [-limit, limit, 0.0, 2.0**-16]
    secure = run_secure(program, x).reshape(-1)
    y = x.reshape(-1)
    index = np.arange(count) // 5000
    a, bb, c = (program.parameters[f"{act.name}.{n}"][index] for n in "abc")
    expected = np.where(np.isin(np.arange(count), act.kept), np.maximum(y, 0), a * y * y + bb * y + c)
    assert np.abs(secure - expected).max() < 0.2  # one unit of t (2**-12) times the steepest slope, and coding of b


@pytest.mark.parametrize("comparison", ["dcf", "short", "bits"])
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_secure_equals_fixed_bit_for_bit_out_of_range(comparison, data):
    """Inputs far beyond every window, guard band and ring: wrong answers, but the same wrong answers."""
    program = random_program(data) if data.draw(st.booleans()) else mixed_program(data.draw(st.integers(0, 99)))
    scale = 2.0 ** data.draw(st.integers(3, 40))
    x = scale * np.random.default_rng(0).normal(0, 1, (1, *program.input.shape))
    with LocalPair(program, comparison) as pair:
        answer = run_known(pair, x, SEEDS)
    np.testing.assert_array_equal(answer, FixedProgram(program).run(x, DealtRounding(pair.dealer, SEEDS, 1)))
