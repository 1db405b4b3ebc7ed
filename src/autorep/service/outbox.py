"""Messages for one control link, sent in order by whoever has one to send.

A message goes out at once, in the thread that puts it, when the link takes it without waiting, as it nearly always
does: no other thread need wake up for it. What the link does not take, because its other end is slow or stopped, waits
for the link's own thread, and so does everything after it.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from autorep.errors import ProtocolError
from autorep.mpc.transport import Transport
from autorep.service.logs import trouble
from autorep.service.messages import ALIVE, send_text, text_of

AT_ONCE = 4096  # bytes; longer messages always wait for the link's thread


class Outbox:
    """`put` from any thread; `serve` in the thread of the link."""

    def __init__(self) -> None:
        self._link: Transport | None = None
        self._lock = threading.Lock()
        self._waiting = 0  # messages in the queue, or taken from it and not yet sent
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def put(self, message: dict[str, Any]) -> None:
        """Send a message, now or after those that wait; never waits."""
        text = text_of(message)
        with self._lock:
            if self._link is None or self._waiting or len(text) > AT_ONCE or not self._link.writable():
                self._waiting += 1
                self._queue.put(text)
                return
            try:
                send_text(self._link, text)
            except ProtocolError as error:
                trouble("control link", error)
                self.close()

    def close(self) -> None:
        """No more is sent; what waits is dropped or on its way."""
        self._queue.put(None)

    def serve(self, link: Transport, seconds: float) -> None:
        """Send what waits, and a sign of life every so many seconds, until closed or the link fails."""
        with self._lock:
            self._link = link
        try:
            while not link.failed:
                try:
                    text = self._queue.get(timeout=seconds)
                except queue.Empty:
                    self.put(ALIVE)
                    continue
                if text is None:
                    break
                send_text(link, text)
                with self._lock:
                    self._waiting -= 1
        finally:
            with self._lock:
                self._link = None
