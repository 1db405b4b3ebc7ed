"""The pseudorandom stream against the cryptography package's AES-CTR."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep import _native


def stream(key: bytes, words: int) -> np.ndarray:
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * words)), np.uint64)


@settings(max_examples=40)
@given(st.binary(min_size=16, max_size=16), st.integers(0, 700), st.integers(1, 64))
def test_stream_equals_aes_ctr_cut_to_bits(level: str, key: bytes, words: int, bits: int) -> None:
    found = _native.prg(key, np.empty(words, np.uint64), bits)
    assert np.array_equal(found, stream(key, words) & np.uint64(2**bits - 1))


def test_long_streams_and_threads_agree(level: str) -> None:
    key, words = bytes(range(16)), 150_001
    expected = stream(key, words)
    for threads in (1, 2):
        _native.set_threads(threads)
        try:
            found = _native.prg(key, np.empty(words, np.uint64))
        finally:
            _native.set_threads(1)
        assert np.array_equal(found, expected)


def test_fills_any_shape_in_place(level: str) -> None:
    out = np.empty((3, 5, 7), np.uint64)
    assert _native.prg(b"k" * 16, out, 44) is out
    assert np.array_equal(out.ravel(), stream(b"k" * 16, 105) & np.uint64(2**44 - 1))


def test_wrong_key_length_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 16 bytes, found 15"):
        _native.prg(bytes(15), np.empty(4, np.uint64))
