"""Tapes of a dealt kit: the dealer writes one, each party reads its own, item by item, each once.

An item's share is expanded from a seed, or stands in the kit; its kind says which.
"""

from __future__ import annotations

import hashlib

import numpy as np

from autorep import _native
from autorep.errors import MaterialError
from autorep.mpc.kit import HEADER_BYTES, Header, KitWriter
from autorep.mpc.prg import stream
from autorep.mpc.ring import reduce
from autorep.mpc.sizes import Item


class _Tape:
    """What both sides know: the kit's public id."""

    _kit_id: bytes

    def aes_keys(self) -> bytes:
        """Public AES keys for the comparisons of this kit alone: no search for a seed serves two kits."""
        return hashlib.sha256(b"autorep/dcf/2" + self._kit_id).digest()


class DealerTape(_Tape):
    """The dealer's side: knows both seeds, writes what each party cannot expand by itself, in the order of `items`."""

    def __init__(
        self, kit_id: bytes, items: list[Item], seeds: tuple[bytes, bytes], writers: tuple[KitWriter, KitWriter]
    ) -> None:
        self._written = iter([item for item in items if item.kind != "mask"])
        self._kit_id, self._seeds, self._writers = kit_id, seeds, writers

    def mask(self, item: Item) -> np.ndarray:
        """The sum of the parties' own shares of a mask."""
        share0, share1 = self.own_streams(item)
        return reduce(share0 + share1, item.bits)

    def xor_mask(self, item: Item) -> np.ndarray:
        """The exclusive or of the parties' own shares."""
        share0, share1 = self.own_streams(item)
        return share0 ^ share1

    def own_streams(self, item: Item) -> tuple[np.ndarray, np.ndarray]:
        """Both parties' expansions of a label."""
        share0, share1 = (stream(seed, item.label, (item.count,), item.bits) for seed in self._seeds)
        return share0, share1

    def share(self, item: Item, value: np.ndarray) -> None:
        """Additively share a value: P0's part from its seed, the difference to P1."""
        self._next(item)
        difference = value.reshape(-1) - stream(self._seeds[0], item.label, (item.count,), item.bits)
        self._writers[1].section(_native.pack(reduce(difference, item.bits), item.bits).data)

    def xor(self, item: Item, value: np.ndarray) -> None:
        """The same with exclusive or."""
        self._next(item)
        self._writers[1].section((value.reshape(-1) ^ stream(self._seeds[0], item.label, (item.count,))).data)

    def keys(self, item: Item, keys: np.ndarray) -> None:
        """Comparison keys, the same bytes to both."""
        self._next(item)
        for writer in self._writers:
            writer.section(keys.reshape(-1).data)

    def _next(self, item: Item) -> None:
        expected = next(self._written, None)
        if item != expected:
            raise MaterialError(f"dealer: wrote {item} where the inventory has {expected}")


class PartyTape(_Tape):
    """A party's side: its own share of every tensor, each readable once."""

    def __init__(self, header: Header, items: list[Item], kit: bytes | memoryview) -> None:
        self._kit_id, self._party, self._seed = header.kit_id, header.party, header.seed
        self._kit = np.frombuffer(kit, np.uint8)
        self._offsets: dict[Item, int] = {}
        offset = HEADER_BYTES
        for item in items:
            self._offsets[item] = offset
            offset += item.bytes_to(header.party)

    def mask(self, item: Item) -> np.ndarray:
        """This party's own uniform share."""
        self._take(item)
        return stream(self._seed, item.label, (item.count,), item.bits)

    def share(self, item: Item) -> np.ndarray:
        """This party's additive share of a value the dealer chose."""
        section = self._take(item)
        if self._party == 0:
            return stream(self._seed, item.label, (item.count,), item.bits)
        return _native.unpack(section, item.count, item.bits)

    def xor(self, item: Item) -> np.ndarray:
        """This party's xor share of a value the dealer chose."""
        section = self._take(item)
        if self._party == 0:
            return stream(self._seed, item.label, (item.count,))
        return section.copy().view(np.uint64)

    def keys(self, item: Item) -> np.ndarray:
        """Comparison keys, one row each, not copied."""
        return self._take(item).reshape(item.count, -1)

    def _take(self, item: Item) -> np.ndarray:
        start = self._offsets.pop(item, None)
        if start is None:
            raise MaterialError(f"correlated randomness {item.label!r} was used already or is not in the inventory")
        return self._kit[start : start + item.bytes_to(self._party)]
