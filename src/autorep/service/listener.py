"""Accepts authenticated connections and serves each in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

from autorep.errors import AutorepError, ConfigError
from autorep.mpc.transport_tcp import TcpTransport, accept
from autorep.service.logs import trouble


class Listener(threading.Thread):
    """Listens at an address until closed.

    Args:
        roles: who may connect, by the role in the certificate.
        serve: gets each connection after its TLS handshake; the connection is closed when it returns.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        roles: set[str],
        timeout: float,
        serve: Callable[[TcpTransport], None],
    ) -> None:
        super().__init__(name="autorep-listener", daemon=True)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family, backlog=64)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {address[0]}:{address[1]}: {error.strerror or error}; choose another address"
            ) from None
        self._context, self._roles, self._timeout, self._serve = context, roles, timeout, serve
        self._open: set[TcpTransport] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def port(self) -> int:
        """The port, also when the system chose it."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        while not self._closed:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._handle, args=(raw,), name="autorep-link", daemon=True).start()

    def close(self) -> None:
        """Stop accepting and cut every connection."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._socket.close()
        with self._lock:
            for transport in self._open:
                transport.interrupt()

    def _handle(self, raw: socket.socket) -> None:
        transport: TcpTransport | None = None
        try:
            transport = accept(raw, self._context, self._roles, self._timeout)
            with self._lock:
                self._open.add(transport)
            self._serve(transport)
        except AutorepError as error:
            if not self._closed:
                trouble("connection ended", error, peer=transport.peer if transport else "unknown")
        finally:
            if transport is not None:
                with self._lock:
                    self._open.discard(transport)
                transport.close()
