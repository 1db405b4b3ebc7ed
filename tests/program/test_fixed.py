"""Fixed point against plain Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.program import ir
from autorep.program.fixed import FixedProgram, NearestRounding, SeededRounding, run_fixed

SIGNED44 = st.integers(-(2**42) + 1, 2**42 - 1)
FAR = st.integers(-(2**50), 2**50)  # beyond the ring


class Recorded:
    """Masks drawn once and remembered, so that a slow reference can use the same."""

    def __init__(self) -> None:
        self.inner, self.drawn = SeededRounding(5), {}

    def mask(self, name, step, shape, bits, shift):
        self.drawn[name, step] = self.inner.mask(name, step, shape, bits, shift)
        return self.drawn[name, step]


def slow_open(y: int, r: int, bits: int, shift: int) -> int:
    """y >> shift, rounded by the mask's low bits; beyond ±2**(bits − 2) one of two lifts, as the mask will have it."""
    half, ring = 2 ** (bits - 1), 2**bits
    v = (y + half // 2) % ring
    wraps, seen = v + r >= ring, r >= half and (v + r) % ring < half
    return ((v + r % 2**shift) >> shift) - (half // 2 >> shift) + (seen - wraps) * 2 ** (bits - shift)


def slow_relu(t: int, window: int) -> int:
    return 0 if t >> window & 1 else t


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
@given(st.lists(SIGNED44 | FAR, min_size=6, max_size=6), st.data())
def test_activation_equals_integer_reference(values, data):
    op = activation(knots=(0, 3 << 16), slopes=(1, -1), offset=5, lead_frac=data.draw(st.integers(4, 12)))
    coefficients = {name: data.draw(st.tuples(*[st.floats(-2, 2, width=32)] * 2)) for name in "abc"}
    parameters = {f"act.{name}": np.array(value) for name, value in coefficients.items()}
    program = sum_program(op, parameters)
    rounding = Recorded()
    result = FixedProgram(program).run(np.array(values).reshape(1, 2, 3) / 2**32, rounding).reshape(-1)
    mask_a, mask_b = (rounding.drawn["act", step].reshape(-1) for step in "ab")
    quadratics = list(op.quad_index)
    for position, y in enumerate(values):
        if position in op.kept:
            t = slow_open(y, int(mask_a[position]), 44, 16)
            if abs(y) < 2**42:
                assert t in (y >> 16, (y >> 16) + 1)
            expected = 5 + slow_relu(t, 26) - slow_relu(t - (3 << 16), 26)
            if abs(t) < 2**25:
                assert expected == 5 + max(t, 0) - max(t - (3 << 16), 0)
        else:
            t = slow_open(y, int(mask_a[position]), 44, 32 - op.quad_frac)
            a, b, c = (
                round(coefficients[name][position // 3] * 2**frac)
                for name, frac in zip("abc", (op.lead_frac, op.lead_frac + 12, op.lead_frac + 24))
            )
            z = a * t * t + b * t + c
            low = int(mask_b[quadratics.index(position)]) % 2**op.quad_shift
            expected = (z + low) >> op.quad_shift
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
    masks = [SeededRounding(seed).mask("layer", "a", (1, 100), 40, 20) for seed in (1, 1, 2)]
    assert np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[0], masks[2])
    assert 2**39 < masks[0].max() < 2**40


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**44 - 1), min_size=9, max_size=9), st.sampled_from([20, 30, 43]))
def test_max_pool_equals_integer_tournament(values, window):
    """Right while candidates differ by less than the window; beyond, what the servers' order of matches makes of it."""
    source = ir.Input(name="input", inputs=(), shape=(1, 3, 3), kind="wire", bits=44, frac=0)
    op = ir.MaxPool(
        name="pool", inputs=("input",), shape=(1, 1, 1), kind="wire", bits=44, frac=0, kernel=(3, 3), stride=(3, 3),
        window=window,
    )  # fmt: skip
    program = ir.Program((source, op), {"unused": np.zeros(1)})
    signed = [v - 2**44 if v >= 2**43 else v for v in values]
    found = int(FixedProgram(program).run(np.array(signed, float).reshape(1, 1, 3, 3)).item())
    left = list(signed)
    while len(left) > 1:
        pairs = len(left) // 2
        left = [b + slow_relu(a - b, window) for a, b in zip(left[:pairs], left[pairs:])] + left[2 * pairs :]
    assert found == left[0] % 2**44
    if max(signed) - min(signed) < 2**window:
        assert found == max(signed) % 2**44


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
