"""Fingerprints of what two makers must compute alike: makers of another release are refused before anything is made.

Their messages look uniform, so two releases that differ would make kits that fit nowhere, and nobody would notice
before the answers. The kernels are fingerprinted by what they give for fixed inputs, the order and layout of messages
by the sources that write and read them: neither can be forgotten when something changes.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

import numpy as np

from autorep._native import ot as kernel
from autorep.mpc.rlwe.parameters import expand, linear_ring

_PACKAGES = ("ot", "rlwe", "two_party")


@cache
def fingerprints() -> dict[str, str]:
    """Name of a part -> eight hexadecimal digits."""
    polynomials = expand(linear_ring(), bytes(range(32)), "wire", 1)
    keys = np.arange(kernel.BLOCKS * kernel.KEYS * 16, dtype=np.uint32).astype(np.uint8)
    receiver = kernel.Receiver(keys.reshape(kernel.BLOCKS, kernel.KEYS, 16))
    message, pads = receiver.extend(0, np.arange(2, dtype=np.uint64))
    return {
        "polynomials": _digest(polynomials.tobytes(), linear_ring().forward(polynomials).tobytes()),
        "transfers": _digest(message.tobytes(), pads.tobytes()),
        "messages": _digest(*_sources()),
    }


def _sources() -> list[bytes]:
    folders = (resources.files("autorep.mpc") / package for package in _PACKAGES)
    files = (file for folder in folders for file in folder.iterdir() if file.name.endswith(".py"))
    return [file.read_bytes() for file in sorted(files, key=lambda file: file.name)]


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=4).hexdigest()
