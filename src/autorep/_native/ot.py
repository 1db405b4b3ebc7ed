"""Correlated oblivious transfers: the two ends of the extension (SoftSpoken, k = 4).

Both ends number their transfers alike and never use a number twice. Transfer n gives the receiver, who chose the bit c,
the pad H(n, t), and the sender the two pads H(n, q) and H(n, q ^ delta) with t = q ^ c·delta: the receiver's is the
sender's number c, and the other one looks random to it.
"""

from __future__ import annotations

import numpy as np

from autorep._native import Bytes, Words, _check, _core

BLOCKS, KEYS = 32, 16
ALIGNMENT = 128  # transfers are made in multiples of this
MESSAGE_BYTES = 4  # what the receiver sends for a transfer


def message_bytes(count: int) -> int:
    """Bytes the receiver sends for `count` transfers, a multiple of 128."""
    return MESSAGE_BYTES * count


def _check_range(first: int, count: int) -> None:
    if first % ALIGNMENT or count % ALIGNMENT or count < ALIGNMENT:
        raise ValueError(f"transfers {first} to {first + count}: both ends must be multiples of {ALIGNMENT}")


class Receiver:
    """The end that chooses. keys (32, 16, 16 bytes): all keys of every block."""

    def __init__(self, keys: Bytes) -> None:
        _check("keys", keys, (BLOCKS, KEYS, 16), np.uint8)
        self._streams = _core.OtStreams(keys)

    def extend(self, first: int, choices: Words, depth: int = 1) -> tuple[Words, Words]:
        """The message to the sender (32, words), and a pad (transfers, depth, 2 words) for each choice bit.

        Choice i is bit i % 64 of word i // 64. Level d of a pad is the hash with tweak (number, d).
        """
        _check("choices", choices, (None,))
        _check_range(first, 64 * choices.size)
        message = np.empty((BLOCKS, choices.size), np.uint64)
        pads = np.empty((64 * choices.size, depth, 2), np.uint64)
        self._streams.receive(first, choices, message, pads)
        return message, pads


class Sender:
    """The end with delta (two words). keys (32, 16, 16 bytes): ordered by x ^ (the block's four bits of delta), so
    that number 0 of each block is the one it does not have; that one is ignored."""

    def __init__(self, keys: Bytes, delta: Words) -> None:
        _check("keys", keys, (BLOCKS, KEYS, 16), np.uint8)
        _check("delta", delta, (2,))
        self._streams, self._delta = _core.OtStreams(keys), delta.copy()

    def extend(self, first: int, message: Words, depth: int = 1) -> tuple[Words, Words]:
        """Both pads of every transfer, from the receiver's message."""
        _check("message", message, (BLOCKS, None))
        count = 64 * message.shape[1]
        _check_range(first, count)
        pads0, pads1 = np.empty((count, depth, 2), np.uint64), np.empty((count, depth, 2), np.uint64)
        self._streams.send(first, message, self._delta, pads0, pads1)
        return pads0, pads1
