"""Fairness between clients: a queue that serves them in turn, and an allowance of queries per second each."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
_REMEMBERED_CLIENTS = 65_536


class FairQueue(Generic[T]):
    """First in, first out for each client; clients take turns, so a busy one delays only itself."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, client: str, item: T) -> None:
        self._lines.setdefault(client, deque()).append(item)
        self._length += 1

    def pop(self) -> T:
        """The oldest item of the client whose turn it is; that client goes to the end of the round."""
        client, line = self._lines.popitem(last=False)
        item = line.popleft()
        if line:
            self._lines[client] = line
        self._length -= 1
        return item


@dataclass
class _Bucket:
    tokens: float
    updated: float


@dataclass
class RateLimit:
    """`rate` images a second for each client, with bursts of up to `burst`; a rate of 0 sets no limit."""

    rate: float
    burst: int
    clock: Callable[[], float]
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)

    def wait(self, client: str, images: int = 1) -> float:
        """Count one query of so many images: 0 when it may pass, else the seconds until it may.

        A query of more images than a burst passes when the bucket is full, and the next ones wait for it.
        """
        if self.rate <= 0:
            return 0.0
        now = self.clock()
        bucket = self._buckets.setdefault(client, _Bucket(self.burst, now))
        self._buckets.move_to_end(client)
        if len(self._buckets) > _REMEMBERED_CLIENTS:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self.burst, bucket.tokens + (now - bucket.updated) * self.rate)
        bucket.updated = now
        due = min(images, self.burst)
        if bucket.tokens < due:
            return (due - bucket.tokens) / self.rate
        bucket.tokens -= images
        return 0.0


class Recent(Generic[T]):
    """Remembers the last `capacity` keys, each with a value if one is given."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[str, T | None] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str, value: T | None = None) -> None:
        self._keys[key] = value
        if len(self._keys) > self._capacity:
            self._keys.popitem(last=False)

    def get(self, key: str) -> T | None:
        """The value remembered with a key."""
        return self._keys.get(key)
