"""Accepts authenticated connections and serves each in a thread of its own."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable

from autorep.errors import AutorepError, ConfigError
from autorep.mpc.transport_tcp import TcpTransport, accept
from autorep.service.logs import crash, trouble
from autorep.service.workers import Worker

_HANDSHAKE_SECONDS = 5.0
_STRANGERS = 128  # connections whose TLS handshake is not done
_STRANGERS_PER_ADDRESS = 16
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NO_ROOM_WAIT = 0.2


class Listener:
    """Listens at an address until closed.

    Connections that have not proved who they are get little time and little room; the process's want of descriptors or
    memory makes it wait, never end.

    Args:
        roles: who may connect, by the role in the certificate.
        serve: gets each connection after its TLS handshake; the connection is closed when it returns.
        crashed: counts errors nobody expected.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        roles: set[str],
        timeout: float,
        serve: Callable[[TcpTransport], None],
        crashed: Callable[[], None] = lambda: None,
    ) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family, backlog=64)
        except OSError as error:
            raise ConfigError(
                f"cannot listen for servers at {address[0]}:{address[1]}: {error.strerror or error}; choose another "
                "address"
            ) from None
        self._context, self._roles, self._timeout, self._serve = context, roles, timeout, serve
        self._open: set[TcpTransport] = set()
        self._strangers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._crashed = crashed
        self.worker = Worker("autorep-listener", self._accept, self._closed, crashed)

    @property
    def port(self) -> int:
        """The port, also when the system chose it."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Begin to accept."""
        self.worker.start()

    def close(self) -> None:
        """Stop accepting and cut every connection."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._socket.close()
        with self._lock:
            for transport in self._open:
                transport.interrupt()

    def _accept(self) -> None:
        try:
            raw, address = self._socket.accept()
        except OSError as error:
            if self._closed.is_set():
                return
            if error.errno in _NO_ROOM:
                trouble("cannot accept a connection", error)
            self._closed.wait(_NO_ROOM_WAIT)  # others (a peer that left at once) are over by the next one
            return
        if not self._may_try(address[0]):
            raw.close()
            return
        try:
            thread = threading.Thread(target=self._handle, args=(raw, address[0]), name="autorep-link", daemon=True)
            thread.start()
        except RuntimeError as error:  # no thread to be had
            self._forget(address[0])
            raw.close()
            trouble("cannot serve a connection", error)
            self._closed.wait(_NO_ROOM_WAIT)

    def _may_try(self, address: str) -> bool:
        with self._lock:
            if self._strangers.total() >= _STRANGERS or self._strangers[address] >= _STRANGERS_PER_ADDRESS:
                return False
            self._strangers[address] += 1
            return True

    def _forget(self, address: str) -> None:
        with self._lock:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]

    def _handle(self, raw: socket.socket, address: str) -> None:
        transport: TcpTransport | None = None
        try:
            try:
                transport = accept(raw, self._context, self._roles, self._timeout, _HANDSHAKE_SECONDS)
            finally:
                self._forget(address)
            with self._lock:
                self._open.add(transport)
            self._serve(transport)
        except AutorepError as error:
            if not self._closed.is_set():
                trouble("connection ended", error, peer=transport.peer if transport else address)
        except Exception as error:
            crash("connection failed", error, peer=transport.peer if transport else address)
            self._crashed()
            if transport is not None:
                transport.abort("an unexpected error at the other end; its log says more")
        finally:
            if transport is not None:
                with self._lock:
                    self._open.discard(transport)
                transport.close()
