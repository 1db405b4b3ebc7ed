"""What making kits took, part by part: seconds, processor time and bytes sent by one party."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autorep.mpc.transport import Transport


@dataclass(frozen=True)
class Spent:
    """Of one part. Processor time is the process's: it counts where nothing else runs in it."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sent: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds, self.sent + other.sent)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.seconds - other.seconds, self.cpu_seconds - other.cpu_seconds, self.sent - other.sent)


class Account:
    """Parts do not overlap: what is spent in a part that opens inside another one is not the outer one's."""

    def __init__(self, link: Transport) -> None:
        self._link = link
        self.parts: dict[str, Spent] = {}
        self._within = Spent()  # spent so far in parts inside the one that is open

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Book what happens in the block."""
        before, outside, self._within = self._now(), self._within, Spent()
        try:
            yield
        finally:
            total = self._now() - before
            self.parts[name] = self.parts.get(name, Spent()) + total - self._within
            self._within = outside + total

    def _now(self) -> Spent:
        sent = self._link.ledger.total(self._link.phase).sent
        return Spent(time.perf_counter(), time.process_time(), sent)
