"""Kits at rest: encrypted and authenticated with AES-256-GCM, each under a key of its own that is used once.

The key is random and seals one kit only, so the nonce is constant. Opening reads and checks in one pass: a bit that
flipped on the disk is an error, never a wrong answer.
"""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path
from typing import BinaryIO

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from autorep.errors import MaterialError

KEY_BYTES, TAG_BYTES = 32, 16
_NONCE = bytes(12)
_CHUNK = 1 << 20
_SLACK = 15  # what `update_into` wants beyond the data
_DURABLE_EVERY = 1 << 28  # bytes: what `finish` has left to wait for stays short, however large the kit


class Sealer:
    """Encrypts what is written to it under a fresh key; `name` must be given again to open it."""

    def __init__(self, sink: BinaryIO, name: bytes) -> None:
        self._sink, self._key = sink, secrets.token_bytes(KEY_BYTES)
        self._encryptor = Cipher(algorithms.AES(self._key), modes.GCM(_NONCE)).encryptor()
        self._encryptor.authenticate_additional_data(name)
        self._buffer = memoryview(bytearray(_CHUNK + _SLACK))
        self._pending = 0

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK):
            size = self._encryptor.update_into(view[start : start + _CHUNK], self._buffer)
            self._sink.write(self._buffer[:size])
            self._pending += size
            if self._pending >= _DURABLE_EVERY:
                self._make_durable()

    def finish(self) -> bytes:
        """Make it durable; returns the key."""
        self._sink.write(self._encryptor.finalize() + self._encryptor.tag)
        self._make_durable()
        return self._key

    def _make_durable(self) -> None:
        self._sink.flush()
        os.fsync(self._sink.fileno())
        self._pending = 0


def unseal(path: Path, key: bytes, name: bytes) -> memoryview:
    """The data of a sealed file; raises MaterialError if a bit of it, its length or its name differ."""
    damaged = MaterialError(f"kit {path.name}: it was altered or damaged on disk; it is thrown away unused")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size - TAG_BYTES
        if size <= 0 or len(key) != KEY_BYTES:
            raise damaged
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as sealed, memoryview(sealed) as view:
            data = np.empty(size + _SLACK, np.uint8).data
            decryptor = Cipher(algorithms.AES(key), modes.GCM(_NONCE)).decryptor()
            decryptor.authenticate_additional_data(name)
            for start in range(0, size, _CHUNK):
                end = min(start + _CHUNK, size)
                with view[start:end] as chunk:
                    decryptor.update_into(chunk, data[start : end + _SLACK])
            try:
                decryptor.finalize_with_tag(bytes(view[size:]))
            except InvalidTag:
                raise damaged from None
    return data[:size].toreadonly()
