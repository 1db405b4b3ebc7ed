"""Fixed point against plain Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.program import ir
from autorep.program.fixed import FixedProgram, NearestRounding, SeededRounding, run_fixed

SIGNED44 = st.integers(-(2**42) + 1, 2**42 - 1)


class Recorded:
    """Low bits drawn once and remembered, so that a slow reference can use the same."""

    def __init__(self) -> None:
        self.inner, self.drawn = SeededRounding(5), {}

    def low(self, name, step, shape, shift):
        self.drawn[name, step] = self.inner.low(name, step, shape, shift)
        return self.drawn[name, step]


def activation(**changes) -> ir.Activation:
    fields = {
        "name": "act", "inputs": ("sum",), "shape": (2, 3), "kind": "wire", "bits": 44, "frac": 16, "open_bits": 44,
        "in_frac": 32, "kept": np.array([0, 4]), "window": 26,
    }  # fmt: skip
    return ir.Activation(**{**fields, **changes})


def sum_program(op: ir.Op, parameters=None) -> ir.Program:
    """The operation on a sum that equals the input exactly (32 fractional bits)."""
    source = ir.Input(name="input", inputs=(), shape=op.shape, kind="wire", bits=64, frac=32)
    total = ir.Add(name="sum", inputs=("input",), shape=op.shape, kind="sum", bits=64, frac=32)
    return ir.Program((source, total, op), parameters or {"unused": np.zeros(1)})


@settings(max_examples=60, deadline=None)
@given(st.lists(SIGNED44, min_size=6, max_size=6), st.data())
def test_activation_equals_integer_reference(values, data):
    op = activation(knots=(0, 3 << 16), slopes=(1, -1), offset=5, lead_frac=data.draw(st.integers(4, 12)))
    coefficients = {name: data.draw(st.tuples(*[st.floats(-2, 2, width=32)] * 2)) for name in "abc"}
    parameters = {f"act.{name}": np.array(value) for name, value in coefficients.items()}
    program = sum_program(op, parameters)
    rounding = Recorded()
    result = FixedProgram(program).run(np.array(values).reshape(1, 2, 3) / 2**32, rounding).reshape(-1)
    low_a, low_b = (rounding.drawn["act", step].reshape(-1) for step in "ab")
    quadratics = list(op.quad_index)
    for position, y in enumerate(values):
        if position in op.kept:
            t = (y + int(low_a[position])) >> 16
            expected = 5 + max(t, 0) - max(t - (3 << 16), 0)
        else:
            t = (y + int(low_a[position])) >> (32 - op.quad_frac)
            a, b, c = (
                round(coefficients[name][position // 3] * 2**frac)
                for name, frac in zip("abc", (op.lead_frac, op.lead_frac + 12, op.lead_frac + 24))
            )
            z = a * t * t + b * t + c
            expected = (z + int(low_b[quadratics.index(position)])) >> op.quad_shift
        assert int(result[position]) == expected % 2**44


@settings(max_examples=60, deadline=None)
@given(st.lists(SIGNED44, min_size=1, max_size=8), st.integers(0, 24))
def test_stochastic_rounding_is_one_of_the_two_neighbours(values, shift):
    op = ir.Requantize(
        name="wire", inputs=("sum",), shape=(len(values),), kind="wire", bits=44, frac=32 - shift, shift=shift,
        open_bits=44, one_round=False,
    )  # fmt: skip
    x = np.array(values)[None] / 2**32
    result = ir.signed(FixedProgram(sum_program(op)).run(x), 44)[0]
    for y, wire in zip(values, result.tolist()):
        assert wire in (y >> shift, -(-y >> shift))


def test_stochastic_rounding_is_unbiased_and_nearest_is_nearest():
    op = ir.Requantize(
        name="wire", inputs=("sum",), shape=(20_000,), kind="wire", bits=44, frac=16, shift=16, open_bits=44,
        one_round=False,
    )  # fmt: skip
    program, x = sum_program(op), np.full((1, 20_000), 2.0**-16 * 0.3)
    assert abs(run_fixed(program, x).mean() * 2**16 - 0.3) < 0.02
    assert run_fixed(program, x, NearestRounding()).max() == 0
    assert run_fixed(program, 2 * x, NearestRounding()).min() == 2.0**-16


def test_seeds_decide_the_rounding():
    low = [SeededRounding(seed).low("layer", "a", (1, 100), 20) for seed in (1, 1, 2)]
    assert np.array_equal(low[0], low[1])
    assert not np.array_equal(low[0], low[2])
    assert low[0].max() < 2**20


@pytest.mark.parametrize("bits", [44, 52, 64])
def test_linear_layers_equal_integer_reference(bits):
    rng = np.random.default_rng(0)
    source = ir.Input(name="input", inputs=(), shape=(2, 4, 4), kind="wire", bits=64, frac=16)
    common = {"kind": "sum", "bits": bits, "frac": 32, "weight_frac": 16}
    conv = ir.Conv(name="conv", inputs=("input",), shape=(3, 4, 4), kernel=(3, 3), padding=(1, 1), **common)
    program = ir.Program(
        (source, conv),
        {"conv.weight": rng.normal(size=(3, 2, 3, 3)) * 2**10, "conv.bias": rng.normal(size=(3, 4, 4))},
    )
    x = rng.normal(size=(2, 2, 4, 4)) * 2**20
    result = FixedProgram(program).run(x)
    encoded = [[int(v) for v in program.encoded(conv, name).view(np.int64).ravel()] for name in ("weight", "bias")]
    weight = np.array(encoded[0], object).reshape(3, 2, 3, 3)
    padded = np.zeros((2, 2, 6, 6), object)
    padded[:, :, 1:5, 1:5] = ir.encode(x, 16).view(np.int64).astype(object)
    for n, o, i, j in np.ndindex(2, 3, 4, 4):
        total = (padded[n, :, i : i + 3, j : j + 3] * weight[o]).sum() + encoded[1][(o * 4 + i) * 4 + j]
        assert int(result[n, o, i, j]) == total % 2**bits


def test_chunks_do_not_change_float_results_and_any_batch_length_works(monkeypatch):
    from autorep.program import execute

    op = ir.Requantize(
        name="wire", inputs=("sum",), shape=(4,), kind="wire", bits=44, frac=16, shift=16, open_bits=44, one_round=False
    )
    program, x = sum_program(op), np.random.default_rng(0).normal(size=(7, 4))
    whole = run_fixed(program, x, NearestRounding())
    monkeypatch.setattr(execute, "_CHUNK_ELEMENTS", 8)
    np.testing.assert_array_equal(run_fixed(program, x, NearestRounding()), whole)
    assert run_fixed(program, x[:0]).shape == (0, 4)
