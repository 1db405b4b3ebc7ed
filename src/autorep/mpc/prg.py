"""Cryptographic randomness: one AES-128-CTR stream per label, keyed by BLAKE2s from a 32-byte seed.

A label names exactly one tensor of one query (or one model), so no stream is ever used for two things.
Seeds come from the operating system.
"""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np

from autorep import _native

SEED_BYTES = 32


def fresh_seed() -> bytes:
    """A new seed from the operating system."""
    return secrets.token_bytes(SEED_BYTES)


class Streams:
    """The streams of one seed, which is the key of a pseudorandom function of their labels: keyed BLAKE2s (RFC 7693).

    A kit has hundreds of labels, and a keyed hash of the standard library takes a quarter of the time of HMAC.
    """

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    def key(self, label: str) -> bytes:
        """A label's AES-128 key."""
        return hashlib.blake2s(label.encode(), digest_size=16, key=self._seed, person=b"streams2").digest()

    def words(self, label: str, count: int, bits: int = 64) -> np.ndarray:
        """Uniform ring elements mod 2**bits that only holders of the seed can compute."""
        return _native.prg(self.key(label), np.empty(count, np.uint64), bits)


def stream_key(seed: bytes, label: str) -> bytes:
    """One key of `Streams.key`."""
    return Streams(seed).key(label)


def stream(seed: bytes, label: str, shape: tuple[int, ...], bits: int = 64) -> np.ndarray:
    """One tensor of `Streams.words`."""
    return Streams(seed).words(label, math.prod(shape), bits).reshape(shape)
