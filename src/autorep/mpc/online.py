"""One party's end of the openings: shares packed to their ring's width, exchanged in one round, added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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
        theirs = self._swap(label, parts)
        return [_native.open_packed(share, packed, bits) for (share, bits), packed in zip(parts, theirs)]

    def open_masked(self, label: str, share: np.ndarray, mask: np.ndarray, offset: int, bits: int) -> np.ndarray:
        """Reveal values of which share + offset is this party's share, under `mask`, its part of the mask; one round.

        The mask is used up: its memory holds the masked share afterwards.
        """
        payload = _native.mask_packed(share, mask, offset, bits)
        (theirs,) = self._swap(label, [(mask, bits)], payload)
        return _native.open_packed(mask, theirs, bits)

    def open_to(
        self,
        label: str,
        parts: Sequence[tuple[np.ndarray, int]],
        out: np.ndarray,
        places: Sequence[tuple[np.ndarray, int]],
    ) -> None:
        """As `open`, with every part, a share (N, k), shifted and put where it belongs: `places` are (index, shift)."""
        for (share, bits), packed, (index, shift) in zip(parts, self._swap(label, parts), places):
            _native.scatter_opened(out, index, share, packed, bits, shift)

    def _swap(
        self, label: str, parts: Sequence[tuple[np.ndarray, int]], payload: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """The other party's shares of all parts, packed, for this party's (`payload`, if they are packed already)."""
        ends = list(accumulate(packed_bytes(share.size, bits) for share, bits in parts))
        spans = [slice(start, end) for start, end in zip([0, *ends], ends)]
        if payload is None and len(parts) == 1 and parts[0][1] == 64:  # whole words travel as they are
            payload = parts[0][0].reshape(-1).view(np.uint8)
        elif payload is None:
            payload = np.empty(ends[-1], np.uint8)
            for (share, bits), span in zip(parts, spans):
                _native.pack(share, bits, payload[span])
        received = np.frombuffer(self.transport.exchange(label, payload.data, payload.nbytes), np.uint8)
        return [received[span] for span in spans]

    def open_xor(self, label: str, words: np.ndarray) -> np.ndarray:
        """Reveal bits of which each party holds an xor share, 64 to a word."""
        received = self.transport.exchange(label, np.ascontiguousarray(words).reshape(-1).data, words.nbytes)
        return words ^ np.frombuffer(received, np.uint64).reshape(words.shape)
