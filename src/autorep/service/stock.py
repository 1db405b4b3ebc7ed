"""Party 0's view of the kits: which lie in both stores, which are being prepared, which are ready; by batch size."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from autorep.mpc.kit import batch_of


def size_of(kit: str) -> int:
    """How many queries a kit, named by its id in hex, serves at once."""
    return batch_of(bytes.fromhex(kit))


@dataclass
class _Progress:
    """How far one kit is on its way to being ready at both servers."""

    here: bool = False
    there: bool = False


class Stock:
    """Kits of the given batch sizes.

    Attributes:
        both: kits in both stores, oldest first; the newest are in memory and used first.
        progress: kits that are being prepared.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.both: dict[str, None] = {}
        self.progress: dict[str, _Progress] = {}
        self._ready: dict[int, deque[str]] = {size: deque() for size in sizes}

    @property
    def ready(self) -> list[str]:
        """Kits that queries could use at once."""
        return [kit for kits in self._ready.values() for kit in kits]

    def has_ready(self, size: int) -> bool:
        return bool(self._ready[size])

    def coming(self, size: int) -> int:
        """Kits of a size that are ready or will be soon."""
        return len(self._ready[size]) + sum(size_of(kit) == size for kit in self.progress)

    def any_of(self, size: int) -> bool:
        """Whether there is a kit of this size, at whatever stage."""
        return bool(self.coming(size)) or self._newest(size) is not None

    def begin(self, size: int) -> str | None:
        """The newest kit of a size begins to be prepared; None where there is none."""
        kit = self._newest(size)
        if kit is not None:
            del self.both[kit]
            self.progress[kit] = _Progress()
        return kit

    def step(self, kit: str, here: bool = False, there: bool = False) -> bool:
        """One server has prepared a kit; whether it is ready now."""
        progress = self.progress.get(kit)
        if progress is None:
            return False
        progress.here |= here
        progress.there |= there
        if not (progress.here and progress.there):
            return False
        del self.progress[kit]
        self._ready[size_of(kit)].append(kit)
        return True

    def take(self, size: int) -> str:
        """A ready kit, for good."""
        return self._ready[size].popleft()

    def clear(self) -> list[str]:
        """Forget all; returns those that were ready or on their way to it."""
        left = [*self.ready, *self.progress]
        self.both.clear()
        self.progress.clear()
        for kits in self._ready.values():
            kits.clear()
        return left

    def _newest(self, size: int) -> str | None:
        return next((kit for kit in reversed(self.both) if size_of(kit) == size), None)
