"""Correlated transfers between the two parties: shares of c·x, c the receiver's bit and x the sender's number.

For one transfer the receiver sends 4 bytes and the sender the packed bits of x's ring. With pads p₀, p₁ at the sender
and p_c at the receiver, all uniform in the ring of x:
    sender → receiver: d = x + p₀ − p₁;   sender's share −p₀;   receiver's share p_c + c·d.
The receiver sees d masked by the pad it cannot compute; the sender sees the message of `_native.ot`, which is masked
by a stream it cannot compute. Several numbers may ride on one transfer (`parts`). Two flights a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autorep import _native
from autorep._native import ot as kernel
from autorep._native import rns
from autorep.mpc.ot.base import make_ends
from autorep.mpc.ring import U64, packed_bytes
from autorep.mpc.transport import Transport


@dataclass(frozen=True)
class Modulus:
    """Numbers modulo 2**bits, or modulo an odd t below 2**62."""

    value: int

    @property
    def bits(self) -> int:
        """Bits of an element on the wire."""
        return (self.value - 1).bit_length()

    @property
    def binary(self) -> bool:
        return self.value & (self.value - 1) == 0

    def reduce(self, x: np.ndarray) -> np.ndarray:
        """A sum of two reduced elements (or, modulo 2**bits, any word) reduced."""
        if self.value == 1 << 64:
            return x
        if self.binary:
            return x & U64(self.value - 1)
        return x - U64(self.value) * (x >= U64(self.value))

    def reduce_word(self, x: np.ndarray) -> np.ndarray:
        """Any word reduced, without a division."""
        return self.reduce(x) if self.binary else rns.multiply_modulo(x, np.ones_like(x), self.value)

    def times(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """x·y of reduced elements."""
        return self.reduce(x * y) if self.binary else rns.multiply_modulo(x, y, self.value)

    def negative(self, x: np.ndarray) -> np.ndarray:
        """−x for a reduced x."""
        return self.reduce((U64(0) if self.binary else U64(self.value)) - x)

    def uniform(self, words: np.ndarray) -> np.ndarray:
        """Elements from uniform pairs of words (n, 2)."""
        if self.binary:
            return self.reduce(np.ascontiguousarray(words[:, 0]))
        low, high = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
        return rns.scale_fraction(low, high >> U64(1), 127, self.value)


def power(bits: int) -> Modulus:
    """The ring of integers modulo 2**bits."""
    return Modulus(1 << bits)


CHUNK = 1 << 20


def padded(count: int) -> int:
    """Transfers that are made where `count` are needed."""
    return -(-count // kernel.ALIGNMENT) * kernel.ALIGNMENT


def receiver_bytes(count: int) -> int:
    """Bytes the receiver of `count` transfers sends."""
    return kernel.message_bytes(padded(count)) if count else 0


def sender_bytes(count: int, parts: Sequence[Modulus]) -> int:
    """Bytes the sender of `count` transfers of these parts sends."""
    return sum(packed_bytes(count, part.bits) for part in parts)


class Transfers:
    """One party's end of correlated transfers in both directions; numbers run on, none is used twice.

    A call of more than `CHUNK` transfers is cut, so that memory stays bounded; each chunk takes its own two flights.
    """

    def __init__(self, link: Transport) -> None:
        self.link = link
        ends = make_ends(link)
        self._receiver, self._sender = ends.receiver, ends.sender
        self._received = self._sent = 0

    def send(self, label: str, values: Sequence[np.ndarray], parts: Sequence[Modulus]) -> list[np.ndarray]:
        """This party sends: its shares of c·x for every part."""
        flat, shares = [value.reshape(-1) for value in values], []
        for cut in _slices(flat[0].size):
            message = self.link.receive(f"{label}/choose", receiver_bytes(cut.stop - cut.start))
            payload, share = self._send(message, [value[cut] for value in flat], parts)
            self.link.send(f"{label}/values", payload)
            shares.append(share)
        return [np.concatenate(pieces) for pieces in zip(*shares)]

    def receive(self, label: str, choices: np.ndarray, parts: Sequence[Modulus]) -> list[np.ndarray]:
        """This party chooses by the bits `choices` (uint64, 0 or 1): its shares of c·x for every part."""
        flat, shares = choices.reshape(-1), []
        for cut in _slices(flat.size):
            message, pads = self._choose(flat[cut], parts)
            self.link.send(f"{label}/choose", message)
            payload = self.link.receive(f"{label}/values", sender_bytes(cut.stop - cut.start, parts))
            shares.append(self._receive(flat[cut], pads, payload, parts))
        return [np.concatenate(pieces) for pieces in zip(*shares)]

    def both(
        self, label: str, choices: np.ndarray, values: Sequence[np.ndarray], parts: Sequence[Modulus]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Both directions at once, alike in number and parts: shares as the sender, shares as the receiver."""
        bits, flat = choices.reshape(-1), [value.reshape(-1) for value in values]
        sent, received = [], []
        for cut in _slices(bits.size):
            count = cut.stop - cut.start
            message, pads = self._choose(bits[cut], parts)
            theirs = self.link.exchange(f"{label}/choose", message, receiver_bytes(count))
            payload, share = self._send(theirs, [value[cut] for value in flat], parts)
            answer = self.link.exchange(f"{label}/values", payload, sender_bytes(count, parts))
            sent.append(share)
            received.append(self._receive(bits[cut], pads, answer, parts))
        return [np.concatenate(p) for p in zip(*sent)], [np.concatenate(p) for p in zip(*received)]

    def _choose(self, choices: np.ndarray, parts: Sequence[Modulus]) -> tuple[memoryview, np.ndarray]:
        count, total = choices.size, padded(choices.size)
        bits = np.zeros(total, np.uint64)
        bits[:count] = choices.reshape(-1)
        words = _native.bit_planes(bits, 1).reshape(-1)
        message, pads = self._receiver.extend(self._received, words, len(parts))
        self._received += total
        return message.reshape(-1).data, pads[:count]

    def _send(
        self, message: memoryview, values: Sequence[np.ndarray], parts: Sequence[Modulus]
    ) -> tuple[memoryview, list[np.ndarray]]:
        count = values[0].size
        columns = np.frombuffer(message, np.uint64).reshape(kernel.BLOCKS, -1)
        pads0, pads1 = self._sender.extend(self._sent, columns, len(parts))
        self._sent += 64 * columns.shape[1]
        packed, shares = [], []
        for number, (value, part) in enumerate(zip(values, parts)):
            pad0, pad1 = (part.uniform(pads[:count, number]) for pads in (pads0, pads1))
            difference = part.reduce(pad0 + part.negative(pad1))
            packed.append(_native.pack(part.reduce(part.reduce(value.reshape(-1)) + difference), part.bits))
            shares.append(part.negative(pad0))
        return np.concatenate(packed).data, shares

    def _receive(
        self, choices: np.ndarray, pads: np.ndarray, payload: memoryview, parts: Sequence[Modulus]
    ) -> list[np.ndarray]:
        data, offset, shares = np.frombuffer(payload, np.uint8), 0, []
        for number, part in enumerate(parts):
            length = packed_bytes(choices.size, part.bits)
            sent = _native.unpack(data[offset : offset + length], choices.size, part.bits)
            shares.append(part.reduce(part.uniform(pads[:, number]) + choices.reshape(-1) * sent))
            offset += length
        return shares


def _slices(count: int) -> list[slice]:
    """Consecutive slices of the sizes of `chunks`."""
    return [slice(start, min(count, start + CHUNK)) for start in range(0, count, CHUNK)]
