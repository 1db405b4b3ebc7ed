"""Every verb's relation, checked from what both parties drew: for any source of correlations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc import verbs
from autorep.mpc.operations import correlate, protocols
from autorep.mpc.operations.linear import RingKernel
from autorep.mpc.operations.requantize import lift
from autorep.mpc.preparation import QuerySource
from autorep.mpc.ring import U64, low_bits, reduce
from autorep.mpc.verbs import Correlation, Source
from autorep.program import ir
from tests.chance import fair

Draw = tuple[Correlation, tuple[np.ndarray, ...], Any]


class Recorder(Source):
    """Passes every draw on and remembers it."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.draws: list[Draw] = []

    def draw(self, correlation: Correlation, *operands: np.ndarray) -> Any:
        result = self._inner.draw(correlation, *operands)
        self.draws.append((correlation, tuple(np.copy(operand) for operand in operands), result))
        return result


def recorded(program: ir.Program, source: QuerySource) -> list[Draw]:
    """Everything one party draws for one query."""
    recorder = Recorder(source)
    correlate(program, protocols(program, source.batch, source.comparison), recorder)
    return recorder.draws


def check_relations(
    program: ir.Program, source: Source, draws: tuple[list[Draw], list[Draw]], dealt: Mapping[str, Any] | None = None
) -> set[type[Correlation]]:
    """Check every draw of the two parties; returns the verbs that occurred. `source` states its tolerances.

    `dealt` is what `programs.watched_dealer` saw of a dealer: operands in the clear, and what it owes.
    """
    for (correlation, operands0, result0), (other, operands1, result1) in zip(*draws, strict=True):
        assert correlation == other
        operands = [a + b for a, b in zip(operands0, operands1, strict=True)]
        if dealt is not None:
            in_clear, _, owed = dealt[correlation.label]
            result0 = _with_debt(correlation, result0, owed)
            operands = operands if isinstance(correlation, verbs.Mask) else list(in_clear)
        _CHECKS[type(correlation)](program, source, correlation, operands, result0, result1)
    return {type(correlation) for correlation, _, _ in draws[0]}


def _with_debt(correlation: Correlation, result: Any, owed: np.ndarray | None) -> Any:
    """One party's result, and what nobody's share has of it."""
    if owed is None:
        return result
    if isinstance(correlation, verbs.Quadratic):
        return verbs.QuadraticShares(result.p, (result.q[0] + owed, result.q[1] + owed))
    return result + owed


def _within(error: np.ndarray, bits: int, bounds: tuple[int, int]) -> None:
    values = ir.signed(reduce(error, bits), bits)
    assert values.min() >= bounds[0]
    assert values.max() <= bounds[1]


def _samples(open_bits: int, headroom: float, count: int) -> np.ndarray:
    """Values |y| < headroom·2**(open_bits − 2), as int64, the ends among them."""
    limit = int(headroom * 2 ** (open_bits - 2)) - 1
    values = np.random.default_rng(open_bits).integers(-limit, limit, count, endpoint=True)
    values[: min(count, 3)] = [limit, -limit, 0][:count]
    return np.random.default_rng(1).permutation(values)


def _check_truncation(
    source: Source, r: np.ndarray, big_r: np.ndarray, wrap: np.ndarray, open_bits: int, shift: int, bits: int
) -> None:
    """T − R + c·m·2**k is y / 2**shift, rounded within the source's bounds."""
    y = _samples(open_bits, source.headroom, r.size).reshape(r.shape)
    opened = reduce(y.astype(np.uint64) + U64(1 << (open_bits - 2)) + r, open_bits)
    public, lifted = lift(opened, open_bits, shift)
    t = public - big_r + ((lifted * wrap) << U64(open_bits - shift))
    _within(t - (y >> shift).astype(np.uint64), bits, source.rounding)


def _mask(program, source, c, operands, r0, r1) -> None:
    assert r0.shape == r1.shape == (c.count,)
    for share in (r0, r1, reduce(r0 + r1, c.bits)):
        assert share.max() <= low_bits(c.bits)
    assert c.count < 8 or not np.array_equal(r0, r1)


def _truncation(program, source, c, operands, result0, result1) -> None:
    r, (big_r, wrap) = reduce(operands[0], c.open_bits), (a + b for a, b in zip(result0, result1))
    if c.wrap_bits:
        assert set(np.unique(reduce(wrap, c.wrap_bits))) <= {0, 1}
    else:
        assert not wrap.any()
        v = np.random.default_rng(2).integers(0, low_bits(c.open_bits), c.count, np.uint64, endpoint=True)
        error = (reduce(v + r, c.open_bits) >> U64(c.shift)) - big_r - (v >> U64(c.shift))
        _within(error, c.bits, source.rounding)
    _check_truncation(source, r, big_r, wrap, c.open_bits, c.shift, c.bits)


def _product(program, source, c, operands, result0, result1) -> None:
    np.testing.assert_array_equal(reduce(result0 + result1, c.bits), reduce(operands[0] * operands[1], c.bits))


def _linear(program, source, c, operands, result0, result1) -> None:
    kernel = RingKernel(c.op, program[c.op.inputs[0]].shape, program.encoded(c.op, "weight"))
    _within(result0 + result1 + kernel(operands[0]), c.op.bits, (-source.linear_error, source.linear_error))


def _quadratic(program, source, c, operands, result0, result1) -> None:
    op, bits = c.op, c.op.quad_open_bits
    a, b = (program.encoded(op, name)[c.channels] for name in "ab")
    r, odd = reduce(operands[0][:, op.quad_index], op.open_bits), np.flatnonzero(a & U64(1))
    inverse = np.array([pow(int(value), -1, 1 << 64) for value in a[odd]], np.uint64)
    rho = []
    for case in (0, 1):
        p, q = result0.p[case] + result1.p[case], result0.q[case] + result1.q[case]
        np.testing.assert_array_equal(reduce(a * q, bits), reduce(p * p - b * p, bits))  # a·Q = (aρ)² − b·(aρ)
        rho.append(p[:, odd] * inverse)
        np.testing.assert_array_equal(reduce(q[:, odd], bits), reduce(rho[case] * (p[:, odd] - b[odd]), bits))
    wrap = reduce(rho[0] - rho[1], bits) >> U64(op.open_bits - c.shift)
    assert set(np.unique(wrap)) <= {0, 1}
    _check_truncation(source, r[:, odd], rho[0], wrap, op.open_bits, c.shift, bits)


def _bits(program, source, c, operands, result0, result1) -> None:
    found = _native.from_bit_planes(np.ascontiguousarray(result0 ^ result1), c.count)
    np.testing.assert_array_equal(found, reduce(operands[0], c.width))


def _triples(program, source, c, operands, result0, result1) -> None:
    x, y, product = (a ^ b for a, b in zip(result0, result1, strict=True))
    np.testing.assert_array_equal(product, x & y)
    assert fair(int(np.unpackbits(x.view(np.uint8)).sum()), 64 * x.size)


def _select(c, bits: np.ndarray, operands, products0, products1) -> None:
    """Shares of bits, bits·R and bits·m."""
    rings = (c.bits, c.bits, c.wrap_bits)
    for value, ring, x, y in zip((U64(1), *operands), rings, products0, products1, strict=True):
        if ring:
            np.testing.assert_array_equal(reduce(x + y, ring), reduce(bits * value, ring))


def _selection(program, source, c, operands, result0, result1) -> None:
    planes = result0.planes ^ result1.planes
    bits = np.stack([_native.from_bit_planes(row.reshape(1, -1), c.count) for row in planes])
    assert fair(int(bits.sum()), bits.size)
    _select(c, bits, operands, result0[1:], result1[1:])


def _keys(program, source, c, operands, result0, result1) -> None:
    big_r, wrap = operands
    sigma, alpha = (big_r >> U64(c.window)) & U64(1), big_r & low_bits(c.window)
    assert result0.aes_keys == result1.aes_keys
    _select(c, sigma, operands, result0[3:], result1[3:])
    for x in (alpha, (alpha - U64(1)) & low_bits(c.window), alpha >> U64(1)):
        values = [
            _native.dcf_eval(party, x, c.window, c.bits, c.wrap_bits, result.root, result.keys, result.aes_keys)
            for party, result in enumerate((result0, result1))
        ]
        below = (U64(1) - U64(2) * sigma) * (x < alpha)
        for column, (value, ring) in enumerate(zip((U64(1), big_r, wrap), (c.bits, c.bits, c.wrap_bits))):
            if ring:
                total = values[0][:, column] + values[1][:, column]
                np.testing.assert_array_equal(reduce(total, ring), reduce(below * value, ring))


def _bit_keys(program, source, c, operands, result0, result1) -> None:
    (big_r,) = operands
    sigma, alpha = (big_r >> U64(c.window)) & U64(1), big_r & low_bits(c.window)
    assert result0.aes_keys == result1.aes_keys
    np.testing.assert_array_equal(reduce(result0.sigma + result1.sigma, c.bits), sigma)
    for x in (alpha, (alpha - U64(1)) & low_bits(c.window), alpha >> U64(1)):
        paid = [
            _native.dcf_eval(party, x, c.window, 1, c.bits, result.root, result.keys, result.aes_keys)[:, 2]
            for party, result in enumerate((result0, result1))
        ]
        below = (U64(1) - U64(2) * sigma) * (x < alpha)
        np.testing.assert_array_equal(reduce(paid[0] + paid[1], c.bits), reduce(below, c.bits))


def _sign_keys(program, source, c, operands, result0, result1) -> None:
    (big_r,) = operands
    assert result0.aes_keys == result1.aes_keys
    for x in (big_r, big_r - U64(1), big_r >> U64(1), big_r + U64(1 << c.window)):
        shares = [
            _native.sign_eval(party, x, c.window, result.root, result.keys, result.aes_keys)
            for party, result in enumerate((result0, result1))
        ]
        found = _native.from_bit_planes((shares[0] ^ shares[1]).reshape(1, -1), c.count)
        np.testing.assert_array_equal(found, (x - big_r) >> U64(c.window) & U64(1))


_CHECKS = {
    verbs.Mask: _mask,
    verbs.Truncation: _truncation,
    verbs.Product: _product,
    verbs.LinearImage: _linear,
    verbs.Quadratic: _quadratic,
    verbs.Bits: _bits,
    verbs.BitTriples: _triples,
    verbs.Selection: _selection,
    verbs.ComparisonKeys: _keys,
    verbs.SignKeys: _sign_keys,
    verbs.BitKeys: _bit_keys,
}
