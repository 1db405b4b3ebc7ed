"""Cryptographic randomness: one AES-128-CTR stream per label, keyed by HKDF from a 32-byte seed.

A label names exactly one tensor of one query (or one model), so no stream is ever used for two things.
Seeds come from the operating system.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets

import numpy as np

from autorep import _native

SEED_BYTES = 32


def fresh_seed() -> bytes:
    """A new seed from the operating system."""
    return secrets.token_bytes(SEED_BYTES)


def stream_key(seed: bytes, label: str) -> bytes:
    """HKDF-SHA256 (extract with a fixed salt, expand with the label) to an AES-128 key."""
    extracted = hmac.digest(b"autorep/stream/1", seed, hashlib.sha256)
    return hmac.digest(extracted, label.encode() + b"\x01", hashlib.sha256)[:16]


def stream(seed: bytes, label: str, shape: tuple[int, ...], bits: int = 64) -> np.ndarray:
    """Uniform ring elements mod 2**bits that only holders of `seed` can compute."""
    out = np.empty(math.prod(shape), np.uint64)
    _native.prg(stream_key(seed, label), out, bits)
    return out.reshape(shape)
