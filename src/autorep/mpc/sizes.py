"""What moves, counted: the exchanges between the servers and the tensors of a kit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autorep.mpc.ring import packed_bytes


@dataclass(frozen=True)
class Part:
    """`count` ring elements of `bits` bits, packed."""

    count: int
    bits: int

    @property
    def bytes(self) -> int:
        return packed_bytes(self.count, self.bits)


@dataclass(frozen=True)
class Round:
    """One full-duplex exchange between the servers: what each sends (and receives), in one frame."""

    label: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """Payload each party sends, without the frame header."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class Item:
    """One tensor of a dealt kit.

    `mask`: each party expands its own share from its seed, nothing is sent. `share` and `xor`: P0 expands its share,
    P1 receives the difference. `keys`: both receive the same bytes.
    """

    label: str
    kind: Literal["mask", "share", "xor", "keys"]
    count: int
    bits: int

    def bytes_to(self, party: int) -> int:
        """Bytes the dealer sends to a party besides its seed."""
        sent = self.kind == "keys" or (party == 1 and self.kind in ("share", "xor"))
        return packed_bytes(self.count, self.bits) if sent else 0
