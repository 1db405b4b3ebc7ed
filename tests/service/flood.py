"""Strangers at the door: connections that do nothing, and connections that send their headers byte by byte."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from types import TracebackType


class Flood:
    """Keeps `idle` silent and `slow` dribbling connections open to a port, and opens new ones for those that are cut.

    They come from many addresses (127.1.x.y), so that no limit per address is what saves the server.
    """

    def __init__(self, port: int, idle: int, slow: int) -> None:
        self._port, self._idle, self._slow = port, idle, slow
        self._over = threading.Event()
        self._numbers = itertools.count()
        self._context = ssl._create_unverified_context()
        self._threads = [
            threading.Thread(target=self._sit, daemon=True),
            *(threading.Thread(target=self._dribble, daemon=True) for _ in range(8)),
        ]
        self.opened = 0

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    def _connect(self) -> socket.socket | None:
        number = next(self._numbers) % 62_500
        link = socket.socket()
        link.settimeout(2.0)
        try:
            link.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
            link.connect(("127.0.0.1", self._port))
        except OSError:
            link.close()
            return None
        self.opened += 1
        return link

    def _sit(self) -> None:
        links: list[socket.socket] = []
        while not self._over.is_set():
            alive = []
            for link in links:
                try:
                    link.setblocking(False)
                    if link.recv(1, socket.MSG_PEEK) == b"":
                        raise ConnectionResetError
                except BlockingIOError:
                    alive.append(link)
                except OSError:
                    link.close()
                else:
                    alive.append(link)
            links = alive
            for _ in range(min(20, self._idle - len(links))):
                if (new := self._connect()) is not None:
                    links.append(new)
            self._over.wait(0.1)
        for link in links:
            link.close()

    def _dribble(self) -> None:
        links: list[ssl.SSLSocket] = []
        while not self._over.is_set():
            if len(links) < self._slow // 8 and (raw := self._connect()) is not None:
                with contextlib.suppress(OSError):
                    links.append(self._context.wrap_socket(raw))
                    links[-1].sendall(b"POST /v1/programs/x HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            for link in list(links):
                try:
                    link.sendall(b"y")
                except OSError:
                    link.close()
                    links.remove(link)
            self._over.wait(0.2)
        for link in links:
            link.close()
