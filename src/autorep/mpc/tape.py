"""Tapes of a dealt kit: the dealer writes one, each party reads its own, item by item, each once.

An item's share is expanded from a seed, or stands in the kit; its kind says which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autorep import _native
from autorep.errors import MaterialError
from autorep.mpc.kit import HEADER_BYTES, Header, KitWriter
from autorep.mpc.prg import Streams
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
        self._kit_id, self._writers = kit_id, writers
        self._streams = Streams(seeds[0]), Streams(seeds[1])

    def mask(self, item: Item, owed: np.ndarray | None = None) -> np.ndarray:
        """The sum of the parties' own shares of a mask, less what is owed of the value under it."""
        key0, key1 = (streams.key(item.label) for streams in self._streams)
        return _native.prg_sum(key0, key1, item.count, item.bits, owed)

    def xor_mask(self, item: Item) -> np.ndarray:
        """The exclusive or of the parties' own shares."""
        share0, share1 = self.own_streams(item)
        return share0 ^ share1

    def own_streams(self, item: Item) -> tuple[np.ndarray, np.ndarray]:
        """Both parties' expansions of a label."""
        share0, share1 = (streams.words(item.label, item.count, item.bits) for streams in self._streams)
        return share0, share1

    def share(self, item: Item, value: np.ndarray) -> None:
        """Additively share a value: P0's part from its seed, the difference to P1."""
        key = self._next(item)
        self._writers[1].section(_native.share_packed(np.ascontiguousarray(value), key, item.bits).data)

    def share_or_owe(self, items: Sequence[Item], value: np.ndarray) -> np.ndarray | None:
        """Share a value by its item; where it has none, nothing is written and all of it is owed."""
        if not items:
            return value
        self.share(items[0], value)
        return None

    def writing(self, items: Sequence[Item]) -> list[bytes]:
        """Several values are made at once: the keys of P0's streams. P1's parts follow by `write`."""
        return [self._next(item) for item in items]

    def write(self, differences: Sequence[np.ndarray]) -> None:
        """P1's packed parts of what was announced."""
        for section in differences:
            self._writers[1].section(section.data)

    def xor(self, item: Item, value: np.ndarray) -> None:
        """The same with exclusive or."""
        self._next(item)
        self._writers[1].section((value.reshape(-1) ^ self._streams[0].words(item.label, item.count)).data)

    def keys(self, item: Item, keys: np.ndarray) -> None:
        """Comparison keys, the same bytes to both."""
        self._next(item)
        for writer in self._writers:
            writer.section(keys.reshape(-1).data)

    def _next(self, item: Item) -> bytes:
        """Note that an item is written; the key of P0's stream of that label."""
        expected = next(self._written, None)
        if item != expected:
            raise MaterialError(f"dealer: wrote {item} where the inventory has {expected}")
        return self._streams[0].key(item.label)


def kit_sections(items: Iterable[Item], party: int) -> dict[str, slice]:
    """Label of an item -> its bytes in a party's kit."""
    sections, start = {}, HEADER_BYTES
    for item in items:
        end = start + item.bytes_to(party)
        sections[item.label] = slice(start, end)
        start = end
    return sections


class PartyTape(_Tape):
    """A party's side: its own share of every tensor, each readable once."""

    def __init__(self, header: Header, sections: Mapping[str, slice], kit: bytes | memoryview) -> None:
        """`sections`, of `kit_sections`, are where this party's items lie."""
        self._kit_id, self._party, self._streams = header.kit_id, header.party, Streams(header.seed)
        self._kit = np.frombuffer(kit, np.uint8)
        self._sections = dict(sections)

    def mask(self, item: Item) -> np.ndarray:
        """This party's own uniform share."""
        self._take(item)
        return self._streams.words(item.label, item.count, item.bits)

    def share(self, item: Item) -> np.ndarray:
        """This party's additive share of a value the dealer chose."""
        section = self._take(item)
        if self._party == 0:
            return self._streams.words(item.label, item.count, item.bits)
        return _native.unpack(section, item.count, item.bits)

    def shares(self, items: Sequence[Item]) -> list[bytes] | list[np.ndarray]:
        """Several as kernels take them that read in blocks: P0's the keys of its streams, P1's packed."""
        sections = [self._take(item) for item in items]
        return [self._streams.key(item.label) for item in items] if self._party == 0 else sections

    def xor(self, item: Item) -> np.ndarray:
        """This party's xor share of a value the dealer chose."""
        section = self._take(item)
        if self._party == 0:
            return self._streams.words(item.label, item.count)
        return section.copy().view(np.uint64)

    def keys(self, item: Item) -> np.ndarray:
        """Comparison keys, one row each, not copied."""
        return self._take(item).reshape(item.count, -1)

    def _take(self, item: Item) -> np.ndarray:
        section = self._sections.pop(item.label, None)
        if section is None:
            raise MaterialError(f"correlated randomness {item.label!r} was used already or is not in the inventory")
        return self._kit[section]
