"""One party's end of the openings: shares packed to their ring's width, exchanged in one round, added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autorep import _native
from autorep.mpc.ring import packed_bytes
from autorep.mpc.transport import Transport


@dataclass(frozen=True)
class Exchange:
    """A party's index and its link to the other party."""

    party: int
    transport: Transport

    def open(self, label: str, parts: Sequence[tuple[np.ndarray, int]]) -> list[np.ndarray]:
        """Reveal values of which each party holds an additive share; one round for all `parts` (share, bits).

        Every share carries a one-time mask uniform in the very ring that is opened.
        """
        packed = [_packed(share.reshape(-1), bits) for share, bits in parts]
        payload = packed[0] if len(packed) == 1 else np.concatenate(packed)
        received = np.frombuffer(self.transport.exchange(label, payload.data, payload.nbytes), np.uint8)
        opened, offset = [], 0
        for share, bits in parts:
            length = packed_bytes(share.size, bits)
            theirs = received[offset : offset + length]
            opened.append(_native.open_packed(share.reshape(-1), theirs, bits).reshape(share.shape))
            offset += length
        return opened

    def open_xor(self, label: str, words: np.ndarray) -> np.ndarray:
        """Reveal bits of which each party holds an xor share, 64 to a word."""
        received = self.transport.exchange(label, np.ascontiguousarray(words).reshape(-1).data, words.nbytes)
        return words ^ np.frombuffer(received, np.uint64).reshape(words.shape)


def _packed(share: np.ndarray, bits: int) -> np.ndarray:
    """The share as it travels; whole words as they are."""
    return share.view(np.uint8) if bits == 64 else _native.pack(share, bits)
