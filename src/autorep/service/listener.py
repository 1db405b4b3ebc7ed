"""Accepts authenticated connections and serves each in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

from autorep.errors import AutorepError, ConfigError
from autorep.mpc.transport_tcp import TcpTransport, accept
from autorep.service.door import NO_ROOM
from autorep.service.logs import crash, trouble
from autorep.service.workers import Worker

_HANDSHAKE_SECONDS = 5.0
_STRANGERS = 128  # connections whose TLS handshake is not done
_STRANGERS_PER_ADDRESS = 16
_NO_ROOM_WAIT = 0.2


class Listener:
    """Listens at an address until closed.

    Connections that have not proved who they are get little time and little room: the oldest of them leaves for the
    next, so that a flood of strangers does not keep a server out, whose handshake takes milliseconds. The process's
    want of descriptors or memory makes it wait, never end.

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
        self._strangers: dict[socket.socket, str] = {}  # a second handle of each, and its address; oldest first
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
            if error.errno in NO_ROOM:
                trouble("cannot accept a connection", error)
            self._closed.wait(_NO_ROOM_WAIT)  # others (a peer that left at once) are over by the next one
            return
        handle: socket.socket | None = None
        try:
            handle = self._welcome(raw, address[0])
            arguments = (raw, handle, address[0])
            threading.Thread(target=self._handle, args=arguments, name="autorep-link", daemon=True).start()
        except (OSError, RuntimeError) as error:  # no descriptor or no thread to be had
            if handle is not None:
                self._is_no_stranger(handle)
            raw.close()
            trouble("cannot serve a connection", error)
            self._closed.wait(_NO_ROOM_WAIT)

    def _welcome(self, raw: socket.socket, address: str) -> socket.socket:
        """Take in a stranger, for which the oldest one leaves where there are too many; returns a second handle."""
        handle = raw.dup()
        with self._lock:
            neighbours = [each for each, theirs in self._strangers.items() if theirs == address]
            if len(neighbours) >= _STRANGERS_PER_ADDRESS or len(self._strangers) >= _STRANGERS:
                leaving = neighbours[0] if len(neighbours) >= _STRANGERS_PER_ADDRESS else next(iter(self._strangers))
                del self._strangers[leaving]
                with contextlib.suppress(OSError):
                    leaving.shutdown(socket.SHUT_RDWR)  # its thread notices
            self._strangers[handle] = address
        return handle

    def _is_no_stranger(self, handle: socket.socket) -> bool:
        """The handshake is over, well or not; False: this one had to leave before."""
        with self._lock:
            stayed = self._strangers.pop(handle, None) is not None
        handle.close()
        return stayed

    def _handle(self, raw: socket.socket, handle: socket.socket, address: str) -> None:
        transport: TcpTransport | None = None
        stayed = True
        try:
            try:
                transport = accept(raw, self._context, self._roles, self._timeout, _HANDSHAKE_SECONDS)
            finally:
                stayed = self._is_no_stranger(handle)
            with self._lock:
                self._open.add(transport)
            self._serve(transport)
        except AutorepError as error:
            if stayed and not self._closed.is_set():
                trouble("connection ended", error, peer=transport.peer if transport else address)
        except Exception as error:  # one guest, whatever it did, must not end the listener
            crash("connection failed", error, peer=transport.peer if transport else address)
            self._crashed()
            if transport is not None:
                transport.abort("an unexpected error at the other end; its log says more")
        finally:
            if transport is not None:
                with self._lock:
                    self._open.discard(transport)
                transport.close()
