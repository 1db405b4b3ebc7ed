"""Polynomials modulo X**n + 1 and a product of primes below 2**49, kept as residues, and what ring-LWE samples.

Residue arrays are uint64 (primes, count, n) in [0, p). Transformed polynomials stand in bit-reversed order, the same
at every instruction-set level. Keys are 16 bytes and serve one call each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from autorep._native import Words, _check, _check_any_shape, _core


def _key(key: bytes) -> np.ndarray:
    if len(key) != 16:
        raise ValueError(f"key: expected 16 bytes, found {len(key)}")
    return np.frombuffer(key, np.uint8)


class Ring:
    """One n and its primes, each 1 modulo 2n."""

    def __init__(self, n: int, primes: Sequence[int]) -> None:
        self.n, self.primes = n, tuple(primes)
        self.modulus = prod(self.primes)
        self._ring = _core.RnsRing(n, list(primes))

    def empty(self, count: int) -> Words:
        """Room for `count` polynomials."""
        return np.empty((len(self.primes), count, self.n), np.uint64)

    def forward(self, x: Words) -> Words:
        """Transform every polynomial in place."""
        self._check("x", x)
        self._ring.forward(x)
        return x

    def inverse(self, x: Words) -> Words:
        """Undo `forward`, in place."""
        self._check("x", x)
        self._ring.inverse(x)
        return x

    def dot(self, w: Words, x: Words) -> Words:
        """(primes, columns, n): sum over terms of w (primes, terms, n) times x (primes, terms, columns, n)."""
        return self.dots(w[:, None], x)[:, 0]

    def dots(self, w: Words, x: Words) -> Words:
        """The same for every row of w (primes, rows, terms, n): (primes, rows, columns, n). Two rows cost less than
        twice one."""
        _check("w", w, (len(self.primes), None, None, self.n))
        _check("x", x, (len(self.primes), w.shape[2], None, self.n))
        out = np.empty((len(self.primes), w.shape[1], x.shape[2], self.n), np.uint64)
        self._ring.dot(w, x, out)
        return out

    def times(self, w: Words, x: Words) -> Words:
        """Every polynomial of x times the one polynomial w."""
        return self.dot(w, x[:, None])

    def multiply(self, x: Words, y: Words) -> Words:
        """Position by position."""
        self._check("x", x)
        _check("y", y, x.shape)
        out = np.empty_like(x)
        self._ring.multiply(x, y, out)
        return out

    def add(self, out: Words, x: Words) -> Words:
        """out += x, in place."""
        self._check("out", out)
        _check("x", x, out.shape)
        self._ring.add(out, x)
        return out

    def residues(self, values: np.ndarray, factor: int = 1, into: Words | None = None) -> Words:
        """values (int64: count, n) times an integer, as residues; added to `into`, in place, where given."""
        _check("values", values, (None, self.n), np.int64)
        factors = np.array([factor % p for p in self.primes], np.uint64)
        out = self.empty(len(values)) if into is None else into
        _check("into", out, (len(self.primes), len(values), self.n))
        _core.rlwe_residues(self._ring, values, factors, out, into is not None)
        return out

    def small(self, values: np.ndarray) -> Words:
        """values (int64: count, n) of magnitude below every prime, as residues."""
        _check("values", values, (None, self.n), np.int64)
        out = self.empty(len(values))
        _core.rlwe_small_residues(self._ring, values, out)
        return out

    def uniform(self, key: bytes, count: int) -> Words:
        """Uniform residues that everyone who knows the key can make."""
        out = self.empty(count)
        _core.rlwe_uniform(self._ring, _key(key), out)
        return out

    def fraction(self, x: Words, bits: int) -> tuple[Words, Words]:
        """Low and high word of the value of every coefficient over the product of all primes, to `bits` places.

        Rounded to nearest, or to the other neighbour within 2**-75 of the middle.
        """
        self._check("x", x)
        if not 1 <= bits <= 72:
            raise ValueError(f"bits = {bits}: valid are 1 to 72")
        lo, hi = np.empty(x.shape[1:], np.uint64), np.empty(x.shape[1:], np.uint64)
        _core.rlwe_fraction(self._ring, x, bits, lo, hi)
        return lo, hi

    def combine(self, x: Words) -> tuple[Words, Words]:
        """Low and high word (two's complement) of the integer of least magnitude; a ring of two primes only."""
        if len(self.primes) != 2:
            raise ValueError(f"combine: a ring of two primes is needed, this one has {len(self.primes)}")
        self._check("x", x)
        lo, hi = np.empty(x.shape[1:], np.uint64), np.empty(x.shape[1:], np.uint64)
        _core.rlwe_combine(self._ring, x, lo, hi)
        return lo, hi

    def _check(self, name: str, x: Words) -> None:
        _check(name, x, (len(self.primes), None, self.n))


def noise(key: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Centred binomial noise (int64), standard deviation 3.24."""
    out = np.empty(shape, np.int64)
    _core.rlwe_noise(_key(key), out)
    return out


def ternary(key: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform on -1, 0, 1 (int64)."""
    out = np.empty(shape, np.int64)
    _core.rlwe_ternary(_key(key), out)
    return out


def below(key: bytes, bound: int, shape: tuple[int, ...]) -> Words:
    """Uniform below `bound` < 2**63, within 2**-64."""
    if not 1 <= bound < 1 << 63:
        raise ValueError(f"bound = {bound}: valid are 1 to 2**63 - 1")
    out = np.empty(shape, np.uint64)
    _core.rlwe_below(_key(key), bound, out)
    return out


def scale_fraction(lo: Words, hi: Words, bits: int, t: int) -> Words:
    """round(f·t) modulo t of fractions of `bits` binary places."""
    _check_any_shape("lo", lo)
    _check("hi", hi, lo.shape)
    if not (64 <= bits <= 127 and 1 < t < 1 << 63):
        raise ValueError(f"bits = {bits}, t = {t}: valid are 64 to 127 bits and 2 to 2**63 - 1")
    out = np.empty(lo.shape, np.uint64)
    _core.rlwe_scale_fraction(lo, hi, bits, t, out)
    return out


def multiply_modulo(x: Words, y: Words, t: int) -> Words:
    """x·y modulo an odd t below 2**63, word by word."""
    _check_any_shape("x", x)
    _check("y", y, x.shape)
    if not (t % 2 and 1 < t < 1 << 63):
        raise ValueError(f"t = {t}: valid are odd numbers from 3 to 2**63 - 1")
    out = np.empty(x.shape, np.uint64)
    _core.rlwe_multiply_modulo(x, y, t, out)
    return out
