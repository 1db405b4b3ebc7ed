"""The transfer kernels against the definition in plain Python, the same numbers at every instruction-set level."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from autorep._native import ot


def ends(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The receiver's keys, the sender's (ordered by x ^ delta, the missing one zero), delta."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 256, (ot.BLOCKS, ot.KEYS, 16), dtype=np.uint8)
    delta = rng.integers(0, 2**64, 2, dtype=np.uint64)
    number = int(delta[0]) | int(delta[1]) << 64
    nibbles = [number >> (4 * j) & 15 for j in range(ot.BLOCKS)]
    sender = np.stack([keys[j][np.arange(16) ^ nibble] for j, nibble in enumerate(nibbles)])
    sender[:, 0] = 0
    return keys, np.ascontiguousarray(sender), delta


def aes(key: bytes, blocks: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)


def tweaked_hash(number: int, level: int, x: int) -> int:
    """π(π(x) ^ tweak) ^ π(x), little-endian blocks."""

    def permute(value: int) -> int:
        return int.from_bytes(aes(b"autorep/ot-hash1", value.to_bytes(16, "little")), "little")

    return permute(permute(x) ^ number ^ level << 64) ^ permute(x)


def receiver_by_definition(keys: np.ndarray, first: int, choices: list[int]) -> tuple[list[int], list[int]]:
    """U of every block as one number, and the row t of every transfer."""
    count = len(choices)
    u, rows = [], [0] * count
    for j in range(ot.BLOCKS):
        counters = b"".join((first // 128 + i).to_bytes(16, "big") for i in range(count // 128))
        streams = [int.from_bytes(aes(keys[j, x].tobytes(), counters), "little") for x in range(16)]
        total = sum(bit << i for i, bit in enumerate(choices))
        for stream in streams:
            total ^= stream
        u.append(total)
        for i in range(4):
            column = 0
            for x in range(16):
                column ^= streams[x] * (x >> i & 1)
            for n in range(count):
                rows[n] |= (column >> n & 1) << (4 * j + i)
    return u, rows


def test_both_ends_follow_the_definition(level: str) -> None:
    keys, sender_keys, delta = ends(1)
    first, words = 384, 4
    choices = np.random.default_rng(2).integers(0, 2**64, words, dtype=np.uint64)
    bits = [int(choices[i // 64]) >> (i % 64) & 1 for i in range(64 * words)]
    message, pads = ot.Receiver(keys).extend(first, choices, depth=2)
    u, rows = receiver_by_definition(keys, first, bits)
    assert [int.from_bytes(row.tobytes(), "little") for row in message] == u
    for n in (0, 1, 63, 64, 200, 255):
        for d in (0, 1):
            assert int.from_bytes(pads[n, d].tobytes(), "little") == tweaked_hash(first + n, d, rows[n])
    pads0, pads1 = ot.Sender(sender_keys, delta).extend(first, message, depth=2)
    number = int(delta[0]) | int(delta[1]) << 64
    for n in (0, 5, 255):
        other = tweaked_hash(first + n, 1, rows[n] ^ number)
        assert int.from_bytes((pads0 if bits[n] else pads1)[n, 1].tobytes(), "little") == other


@pytest.mark.parametrize("words", [2, 126, 128, 130, 400])
def test_receiver_gets_the_pad_it_chose_and_not_the_other(level: str, words: int) -> None:
    keys, sender_keys, delta = ends(3)
    receiver, sender = ot.Receiver(keys), ot.Sender(sender_keys, delta)
    choices = np.random.default_rng(words).integers(0, 2**64, words, dtype=np.uint64)
    message, pads = receiver.extend(128, choices)
    pads0, pads1 = sender.extend(128, message)
    chosen = np.unpackbits(choices.view(np.uint8), bitorder="little").astype(bool)[:, None, None]
    assert np.array_equal(pads, np.where(chosen, pads1, pads0))
    assert not (pads == np.where(chosen, pads0, pads1)).any()


def test_known_answer(level: str) -> None:
    keys, sender_keys, delta = ends(4)
    choices = np.arange(6, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    message, pads = ot.Receiver(keys).extend(0, choices)
    pads0, pads1 = ot.Sender(sender_keys, delta).extend(0, message)
    digest = hashlib.sha256(b"".join(x.tobytes() for x in (message, pads, pads0, pads1))).hexdigest()
    assert digest[:16] == KNOWN


KNOWN = "b7d892559656cf8d"


def test_message_says_nothing_about_the_choices(level: str) -> None:
    """The same keys never serve twice; with fresh numbers the message of all-zero choices is as balanced as any."""
    keys, _, _ = ends(5)
    receiver, words = ot.Receiver(keys), 1024
    for first, choices in ((0, np.zeros(words, np.uint64)), (65536, np.full(words, ~np.uint64(0)))):
        message, pads = receiver.extend(first, choices)
        for data in (message, pads):
            ones = np.unpackbits(data.view(np.uint8)).mean()
            assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * data.size)


def test_ranges_that_do_not_fit_are_refused() -> None:
    keys, sender_keys, delta = ends(6)
    with pytest.raises(ValueError, match="multiples of 128"):
        ot.Receiver(keys).extend(64, np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="multiples of 128"):
        ot.Sender(sender_keys, delta).extend(0, np.zeros((32, 3), np.uint64))
