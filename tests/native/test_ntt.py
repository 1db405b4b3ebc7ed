"""Transforms, samplers and conversions of ring-LWE against Python integers, at every instruction-set level."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep._native import rns

CASES = settings(max_examples=25)
PRIMES = {4096: (562949953216513, 562949952987137), 8192: (562949952847873, 2147352577)}
SMALL = (64, (562949953216513, 2147352577))


def root(n: int, p: int) -> int:
    """The 2n-th root of unity that the kernels use."""
    g = next(g for g in range(2, 100) if pow(g, (p - 1) // 2, p) == p - 1)
    return pow(g, (p - 1) // (2 * n), p)


def evaluated(x: list[int], i: int, p: int) -> int:
    """Output i by definition: the polynomial at ψ to the power 2·(i reversed) + 1."""
    n = len(x)
    reversed_i = int(format(i, f"0{n.bit_length() - 1}b")[::-1], 2)
    point, total = pow(root(n, p), 2 * reversed_i + 1, p), 0
    for value in reversed(x):
        total = (total * point + value) % p
    return total


def extremes(n: int, p: int, seed: int) -> list[np.ndarray]:
    """Inputs that make lazily reduced sums largest."""
    rng, half = np.random.default_rng(seed), p // 2
    signs = rng.integers(0, 2, n)
    return [
        np.full(n, p - 1), np.full(n, half), np.full(n, half + 1), np.where(np.arange(n) % 2, half, half + 1),
        np.where(signs, half, half + 1), np.where(signs, 0, p - 1), rng.integers(0, p, n), np.eye(1, n, n - 1)[0],
    ]  # fmt: skip


@pytest.mark.parametrize("n", [4096, 8192])
def test_forward_is_the_evaluation_and_inverse_undoes_it(level: str, n: int) -> None:
    ring = rns.Ring(n, PRIMES[n])
    x = np.array([extremes(n, p, 1) for p in ring.primes]).astype(np.uint64)
    transformed = ring.forward(x.copy())
    assert (transformed < np.array(ring.primes, np.uint64)[:, None, None]).all()
    for k, p in enumerate(ring.primes):
        for case in (0, 3, 4, 6):
            for i in (0, 1, n // 2 + 1, n - 1):
                assert int(transformed[k, case, i]) == evaluated([int(v) for v in x[k, case]], i, p)
    assert np.array_equal(ring.inverse(transformed), x)


def test_levels_give_the_same_words(level: str) -> None:
    digest = hashlib.sha256()
    for n, primes in PRIMES.items():
        ring = rns.Ring(n, primes)
        x, y = ring.uniform(b"x" * 16, 9), ring.uniform(b"y" * 16, 9)
        digest.update(ring.forward(x.copy()).tobytes() + ring.inverse(y.copy()).tobytes())
        digest.update(ring.dot(x, np.stack([y, x, y], 2)).tobytes())
    assert digest.hexdigest()[:16] == "5c2c4fa66c8aed64"


@CASES
@given(st.integers(0, 10**6))
def test_products_of_transforms_are_negacyclic(level: str, seed: int) -> None:
    n, primes = SMALL
    ring, rng = rns.Ring(n, primes), np.random.default_rng(seed)
    a, b = (rng.integers(-(2**62), 2**62, (1, n)) for _ in range(2))
    product = ring.inverse(ring.multiply(ring.forward(ring.residues(a)), ring.forward(ring.residues(b))))
    expected = [0] * n
    for i, x in enumerate(a[0].tolist()):
        for j, y in enumerate(b[0].tolist()):
            expected[(i + j) % n] += x * y if i + j < n else -x * y
    for k, p in enumerate(primes):
        assert [int(v) for v in product[k, 0]] == [v % p for v in expected]


@pytest.mark.parametrize(("terms", "columns"), [(1, 1), (3, 5), (12, 1), (13, 2), (32, 2), (33, 3), (70, 1)])
@pytest.mark.parametrize("below", [1, 1 << 24])
def test_dot_at_the_largest_residues(level: str, terms: int, columns: int, below: int) -> None:
    """The largest residues, and those whose two halves are both largest where a factor is cut at 25 bits."""
    n, primes = SMALL
    ring = rns.Ring(n, primes)
    top = np.array([min(p - 1, (1 << 49) - below) for p in primes], np.uint64)
    w = np.broadcast_to(top[:, None, None], (2, terms, n)).copy()
    x = np.broadcast_to(top[:, None, None, None], (2, terms, columns, n)).copy()
    x[:, :, :, ::3] -= np.arange(terms, dtype=np.uint64)[:, None, None]
    out = ring.dot(w, x)
    for k, p in enumerate(primes):
        for c in range(columns):
            for i in (0, 1, n - 1):
                assert int(out[k, c, i]) == sum(int(w[k, j, i]) * int(x[k, j, c, i]) for j in range(terms)) % p


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("terms", "columns"), [(1, 1), (1, 3), (9, 3), (12, 1), (13, 1), (40, 2)])
def test_dots_are_the_dots_of_every_row(level: str, rows: int, terms: int, columns: int) -> None:
    ring = rns.Ring(*SMALL)
    w = ring.uniform(b"w" * 16, rows * terms).reshape(2, rows, terms, 64)
    x = ring.uniform(b"x" * 16, terms * columns).reshape(2, terms, columns, 64)
    found = ring.dots(w, x)
    for k, p in enumerate(ring.primes):
        products = w[k].astype(object)[:, :, None] * x[k].astype(object)[None]
        assert (found[k] == products.sum(axis=1) % p).all()


@CASES
@given(st.integers(0, 10**6), st.integers(-(2**100), 2**100))
def test_residues_multiply_and_accumulate(level: str, seed: int, factor: int) -> None:
    n, primes = SMALL
    ring, rng = rns.Ring(n, primes), np.random.default_rng(seed)
    values = rng.integers(-(2**63), 2**63, (2, n))
    values[0, :4] = [0, -1, 2**63 - 1, -(2**63)]
    start = ring.uniform(b"s" * 16, 2)
    into = start.copy()
    assert ring.residues(values, factor, into) is into
    for k, p in enumerate(primes):
        expected = [(int(v) * factor + int(s)) % p for v, s in zip(values.ravel(), start[k].ravel())]
        assert [int(v) for v in into[k].ravel()] == expected
    assert np.array_equal(ring.add(start.copy(), ring.residues(values, factor)), into)


def test_small_values_are_their_own_residues(level: str) -> None:
    ring = rns.Ring(*SMALL)
    limit = min(ring.primes) - 1
    values = np.random.default_rng(0).integers(-limit, limit, (5, 64), endpoint=True)
    values[0, :4] = [0, -1, limit, -limit]
    assert np.array_equal(ring.small(values), ring.residues(values))


@CASES
@given(st.lists(st.integers(0, 2**98), min_size=64, max_size=64), st.sampled_from([1, 40, 64, 72]))
def test_fraction_rounds_the_value_over_the_modulus(level: str, values: list[int], bits: int) -> None:
    ring = rns.Ring(64, (562949953216513, 562949952987137))
    q = ring.modulus
    values = [v % q for v in (*values[:60], 0, 1, q // 2, q - 1)]
    x = np.array([[[v % p for v in values]] for p in ring.primes], np.uint64)
    lo, hi = ring.fraction(x, bits)
    for v, low, high in zip(values, lo[0], hi[0]):
        found, exact = int(high) << 64 | int(low), (2 * v * 2**bits + q) // (2 * q)
        assert (found - exact) % 2**bits in (0, 1, 2**bits - 1)  # the sum of two rounded-down fractions
        if bits <= 64:
            assert int(high) == 0


@CASES
@given(st.lists(st.integers(-(2**97), 2**97), min_size=64, max_size=64))
def test_combine_finds_the_integer_of_least_magnitude(level: str, values: list[int]) -> None:
    for primes in ((562949953216513, 562949952987137), (2147352577, 2147205121)):
        ring = rns.Ring(64, primes)
        half = ring.modulus // 2
        inside = [(v + half) % ring.modulus - half for v in (*values[:61], half, -half, 0)]
        x = np.array([[[v % p for v in inside]] for p in primes], np.uint64)
        lo, hi = ring.combine(x)
        found = [int(low) | int(high) << 64 for low, high in zip(lo[0], hi[0])]
        assert found == [v % 2**128 for v in inside]


@CASES
@given(st.integers(0, 10**6))
def test_products_and_fractions_modulo_t(level: str, seed: int) -> None:
    t, rng = 2147352577 * 2147205121, np.random.default_rng(seed)
    x, y = (rng.integers(0, t, 50, dtype=np.uint64) for _ in range(2))
    x[:3] = y[:3] = [0, t - 1, 1]
    assert [int(v) for v in rns.multiply_modulo(x, y, t)] == [int(a) * int(b) % t for a, b in zip(x, y)]
    lo, hi = rng.integers(0, 2**64, 50, dtype=np.uint64), rng.integers(0, 2**8, 50, dtype=np.uint64)
    lo[:2], hi[:2] = [2**64 - 1, 0], [255, 0]
    for found, low, high in zip(rns.scale_fraction(lo, hi, 72, t), lo, hi):
        f = int(high) << 64 | int(low)
        assert int(found) == (f * t + 2**71 >> 72) % t


def test_samplers_have_the_distribution_they_promise(level: str) -> None:
    count = 200_000
    noise = rns.noise(b"n" * 16, (count,))
    assert abs(noise.mean()) < 5 * 3.24 / count**0.5
    assert abs(noise.var() - 10.5) < 5 * 10.5 * (2 / count) ** 0.5
    assert np.abs(noise).max() <= 21
    ternary = rns.ternary(b"t" * 16, (count,))
    shares = np.bincount(ternary + 1, minlength=3) / count
    assert np.abs(shares - 1 / 3).max() < 5 * (2 / 9 / count) ** 0.5
    bound = 3 << 60
    uniform = rns.below(b"u" * 16, bound, (count,))
    assert uniform.max() < bound
    counts = np.bincount((uniform >> np.uint64(54)).astype(int), minlength=192)
    assert ((counts - count / 192) ** 2 / (count / 192)).sum() < 191 + 5 * (2 * 191) ** 0.5
    ring = rns.Ring(*SMALL)
    drawn = ring.uniform(b"r" * 16, 500)
    for k, p in enumerate(ring.primes):  # the second prime is far below 2**49: most words are rejected
        assert drawn[k].max() < p
        assert abs(drawn[k].astype(float).mean() / p - 0.5) < 5 / (12 * drawn[k].size) ** 0.5


def test_samplers_are_the_same_at_every_level(level: str) -> None:
    parts = (rns.noise(b"n" * 16, (700,)), rns.ternary(b"t" * 16, (3, 513)), rns.below(b"u" * 16, 10**18, (999,)))
    assert hashlib.sha256(b"".join(x.tobytes() for x in parts)).hexdigest()[:16] == "a5846206b6bdbe3f"


def test_wrong_arguments_say_what_is_valid() -> None:
    with pytest.raises(ValueError, match="not a prime below 2"):
        rns.Ring(4096, (562949953216515,))
    with pytest.raises(ValueError, match="a power of two"):
        rns.Ring(100, PRIMES[4096])
    with pytest.raises(ValueError, match="two primes"):
        rns.Ring(64, SMALL[1][:1]).combine(np.zeros((1, 1, 64), np.uint64))
