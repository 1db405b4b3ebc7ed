"""Tapes of correlated randomness: the dealer writes one, each party reads its own, tensor by tensor, each once.

A label names one tensor. Its share is expanded from a seed, or stands in the kit; the inventory says which.
"""

from __future__ import annotations

import numpy as np

from autorep import _native
from autorep.errors import MaterialError
from autorep.mpc.inventory import Item
from autorep.mpc.kit import HEADER_BYTES, KitWriter
from autorep.mpc.prg import stream
from autorep.mpc.ring import reduce


class DealerTape:
    """The dealer's side: knows both seeds, writes what each party cannot expand by itself."""

    def __init__(self, items: list[Item], seeds: tuple[bytes, bytes], writers: tuple[KitWriter, KitWriter]):
        self._items = {item.label: item for item in items}
        self._written = iter([item.label for item in items if item.kind != "mask"])
        self._seeds, self._writers = seeds, writers

    def mask(self, label: str) -> np.ndarray:
        """The sum of the parties' own shares of a mask."""
        bits = self._items[label].bits
        share0, share1 = self.own_streams(label)
        return reduce(share0 + share1, bits)

    def xor_mask(self, label: str) -> np.ndarray:
        """The exclusive or of the parties' own shares."""
        share0, share1 = self.own_streams(label)
        return share0 ^ share1

    def own_streams(self, label: str, shape: tuple[int, ...] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Both parties' expansions of a label."""
        item = self._items[label]
        shares = [stream(seed, label, (item.count,), item.bits) for seed in self._seeds]
        return shares[0].reshape(shape or (-1,)), shares[1].reshape(shape or (-1,))

    def share(self, label: str, value: np.ndarray) -> None:
        """Additively share a value: P0's part from its seed, the difference to P1."""
        item = self._next(label)
        difference = value.reshape(-1) - stream(self._seeds[0], label, (item.count,), item.bits)
        self._writers[1].section(_native.pack(reduce(difference, item.bits), item.bits).data)

    def xor(self, label: str, value: np.ndarray) -> None:
        """The same with exclusive or."""
        item = self._next(label)
        self._writers[1].section((value.reshape(-1) ^ stream(self._seeds[0], label, (item.count,))).data)

    def keys(self, label: str, keys: np.ndarray) -> None:
        """Comparison keys, the same bytes to both."""
        self._next(label)
        for writer in self._writers:
            writer.section(keys.reshape(-1).data)

    def _next(self, label: str) -> Item:
        expected = next(self._written, None)
        if label != expected:
            raise MaterialError(f"dealer: wrote {label!r} where the inventory has {expected!r}")
        return self._items[label]


class PartyTape:
    """A party's side: its own share of every tensor, each readable once."""

    def __init__(self, items: list[Item], party: int, seed: bytes, kit: bytes | memoryview) -> None:
        self._items = {item.label: item for item in items}
        self._party, self._seed = party, seed
        self._kit = np.frombuffer(kit, np.uint8)
        self._offsets: dict[str, int] = {}
        offset = HEADER_BYTES
        for item in items:
            self._offsets[item.label] = offset
            offset += item.bytes_to(party)

    def mask(self, label: str) -> np.ndarray:
        """This party's own uniform share."""
        item = self._take(label)
        return stream(self._seed, label, (item.count,), item.bits)

    def share(self, label: str) -> np.ndarray:
        """This party's additive share of a value the dealer chose."""
        item = self._take(label)
        if self._party == 0:
            return stream(self._seed, label, (item.count,), item.bits)
        return _native.unpack(self._section(item), item.count, item.bits)

    def xor(self, label: str) -> np.ndarray:
        """This party's xor share of a value the dealer chose."""
        item = self._take(label)
        if self._party == 0:
            return stream(self._seed, label, (item.count,))
        return self._section(item).copy().view(np.uint64)

    def keys(self, label: str) -> np.ndarray:
        """Comparison keys, one row each, not copied."""
        item = self._take(label)
        return self._section(item).reshape(item.count, -1)

    def _take(self, label: str) -> Item:
        item = self._items.pop(label, None)
        if item is None:
            raise MaterialError(f"correlated randomness {label!r} was used already or is not in the inventory")
        return item

    def _section(self, item: Item) -> np.ndarray:
        start = self._offsets[item.label]
        return self._kit[start : start + item.bytes_to(self._party)]
