"""Rings, keys and encryption.

Two rings. `LINEAR`: n = 4096, q of 98 bits (the standard allows 109 for 128 bits of security with ternary secrets).
`SLOTS`: n = 8192, q of 196 bits (218 allowed). Secrets are uniform ternary, noise is centred binomial with standard
deviation 3.24. A ciphertext (c₀, c₁) has the phase c₀ + c₁·s; c₁ of a fresh one is expanded from a public seed, so only
c₀ is sent, transformed, 49 bits a residue.

Everything secret is drawn from the operating system, lives in memory only, and is new at every start.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from autorep import _native
from autorep._native import rns
from autorep.mpc.prg import SEED_BYTES, fresh_seed, stream_key
from autorep.mpc.ring import packed_bytes

RESIDUE_BITS = 49
NOISE_DEVIATION = 10.5**0.5
KEY_BYTES = 16


@cache
def linear_ring() -> rns.Ring:
    """Of linear layers."""
    return rns.Ring(4096, (562949953216513, 562949952987137))


@cache
def slot_ring() -> rns.Ring:
    """Of products in slots."""
    return rns.Ring(8192, (562949952847873, 562949952798721, 562949952700417, 562949952274433))


def draw_key() -> bytes:
    """A key for one sampler call."""
    return secrets.token_bytes(KEY_BYTES)


def polynomial_bytes(ring: rns.Ring, count: int) -> int:
    """Bytes of `count` polynomials as residues."""
    return packed_bytes(count * ring.n * len(ring.primes), RESIDUE_BITS)


def pack_polynomials(x: np.ndarray) -> np.ndarray:
    """Residues (primes, count, n) as bytes."""
    return _native.pack(x.reshape(-1), RESIDUE_BITS)


def unpack_polynomials(ring: rns.Ring, data: np.ndarray, count: int) -> np.ndarray:
    """The residues back; a value that is no residue becomes one, so that the kernels' bounds hold whatever arrives."""
    shape = len(ring.primes), count, ring.n
    words = _native.unpack(data, math.prod(shape), RESIDUE_BITS).reshape(shape)
    primes = np.array(ring.primes, np.uint64)[:, None, None]
    return words - primes * (words >= primes)


@dataclass(frozen=True)
class PublicKey:
    """An encryption of zero, transformed: (−a·s + e, a), each (primes, 1, n)."""

    ring: rns.Ring
    c0: np.ndarray = field(repr=False)
    c1: np.ndarray = field(repr=False)

    def zeros(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Fresh encryptions of zero before their own noise: u·pk, transformed; the caller adds noise to each part."""
        u = self.ring.forward(self.ring.small(rns.ternary(draw_key(), (count, self.ring.n))))
        return self.ring.times(self.c0, u), self.ring.times(self.c1, u)

    def noise(self, count: int) -> np.ndarray:
        """Noise (count, n) of one part."""
        return rns.noise(draw_key(), (count, self.ring.n))


def public_key_bytes(ring: rns.Ring) -> int:
    """Bytes of a public key: seed and one polynomial."""
    return SEED_BYTES + polynomial_bytes(ring, 1)


def read_public_key(ring: rns.Ring, data: memoryview) -> PublicKey:
    """The peer's public key."""
    seed, body = bytes(data[:SEED_BYTES]), np.frombuffer(data, np.uint8)[SEED_BYTES:]
    return PublicKey(ring, unpack_polynomials(ring, body, 1), ring.uniform(stream_key(seed, "public key"), 1))


class SecretKey:
    """A ternary secret s, transformed, and the public key that belongs to it."""

    def __init__(self, ring: rns.Ring) -> None:
        self.ring = ring
        s = rns.ternary(draw_key(), (1, ring.n))
        self._s, self._minus = ring.forward(ring.small(s)), ring.forward(ring.small(-s))
        self._seed = fresh_seed()
        c1 = ring.uniform(stream_key(self._seed, "public key"), 1)
        self._public = self._encrypt(ring.small(rns.noise(draw_key(), (1, ring.n))), c1)

    def public(self) -> bytes:
        """The public key as bytes."""
        return self._seed + pack_polynomials(self._public).tobytes()

    def encrypt(self, scaled: np.ndarray, seed: bytes, label: str) -> np.ndarray:
        """c₀ (transformed) of plaintexts already scaled to q (residues, overwritten); c₁ comes from seed and label."""
        count = scaled.shape[1]
        self.ring.residues(rns.noise(draw_key(), (count, self.ring.n)), into=scaled)
        return self._encrypt(scaled, expand(self.ring, seed, label, count))

    def _encrypt(self, message: np.ndarray, c1: np.ndarray) -> np.ndarray:
        return self.ring.add(self.ring.forward(message), self.ring.times(self._minus, c1))

    def times_secret(self, x: np.ndarray) -> np.ndarray:
        """x·s for polynomials x (residues, overwritten) of any ring whose primes are the first of this one's."""
        primes = x.shape[0]
        small = self.ring if primes == len(self.ring.primes) else first_primes(self.ring, primes)
        return small.inverse(small.times(np.ascontiguousarray(self._s[:primes]), small.forward(x)))


@cache
def first_primes(ring: rns.Ring, count: int) -> rns.Ring:
    """The ring of the first `count` primes, for exact products that need no more."""
    return rns.Ring(ring.n, ring.primes[:count])


def expand(ring: rns.Ring, seed: bytes, label: str, count: int) -> np.ndarray:
    """The c₁ of `count` ciphertexts, from a public seed; a label serves once."""
    return ring.uniform(stream_key(seed, label), count)
