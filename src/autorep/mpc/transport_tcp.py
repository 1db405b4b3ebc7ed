"""A link over TCP and TLS 1.3, full duplex in one thread.

An OpenSSL connection must not be used by two threads at once, so one loop alternates between sending and receiving
on a non-blocking socket: two parties that send large messages to each other at the same moment do not deadlock.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time

from autorep.errors import CertificateError, HandshakeError, ProtocolError
from autorep.mpc.tls import peer_roles
from autorep.mpc.transport import FrameReader, Transport, abort_frame

_RECORD = 16384  # the largest TLS record: one send or receive moves at most this much
_BURST = 16  # records moved in one direction before the other gets its turn


class TcpTransport(Transport):
    """One end of a TLS connection whose handshake is done; `peer` is the authenticated role at the other end."""

    def __init__(self, connection: ssl.SSLSocket, peer: str, timeout: float) -> None:
        super().__init__(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.peer = peer
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._mid_frame = False

    def close(self) -> None:
        self._connection.close()

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):  # not connected any more is what the caller wants
            # The plain socket's shutdown: it does not touch the OpenSSL object that the other thread uses.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def _transfer(self, header: bytes, payload: memoryview | None, reader: FrameReader | None) -> None:
        chunks = [] if payload is None else _chunks(header, payload)
        receiving = reader is not None and reader.target() is not None
        deadline = time.monotonic() + self.timeout
        while chunks or receiving:
            moved = send_wait = receive_wait = 0
            if chunks:
                moved, send_wait = self._send_some(chunks)
            if reader is not None and receiving:
                count, receive_wait = self._receive_some(reader)
                moved += count
                receiving = reader.target() is not None
            now = time.monotonic()
            if moved:
                deadline = now + self.timeout
            if (chunks and not send_wait) or (receiving and not receive_wait) or not (chunks or receiving):
                continue  # there is more to move at once
            self._poll.modify(self._connection, send_wait | receive_wait)
            if not self._poll.poll(max(0.0, deadline - now) * 1000):
                raise TimeoutError

    def _send_some(self, chunks: list[memoryview]) -> tuple[int, int]:
        """Send up to a burst; returns the bytes sent and what to poll for (0: more can go at once)."""
        total = 0
        for _ in range(_BURST):
            try:
                count = self._connection.send(chunks[0])
            except ssl.SSLWantWriteError:
                return total, select.POLLOUT
            except ssl.SSLWantReadError:
                return total, select.POLLIN
            total += count
            self._mid_frame = True
            if count < len(chunks[0]):
                chunks[0] = chunks[0][count:]
                continue
            chunks.pop(0)
            if not chunks:
                self._mid_frame = False
                break
        return total, 0

    def _receive_some(self, reader: FrameReader) -> tuple[int, int]:
        """Receive up to a burst; returns the bytes received and what to poll for (0: more may be there)."""
        total = 0
        for _ in range(_BURST):
            target = reader.target()
            if target is None:
                break
            try:
                count = self._connection.recv_into(target)
            except ssl.SSLWantReadError:
                return total, select.POLLIN
            except ssl.SSLWantWriteError:
                return total, select.POLLOUT
            if not count:
                raise ConnectionResetError("closed by the peer")
            total += count
            reader.advance(count)
        return total, 0

    def _send_abort(self, message: str) -> None:
        if self._mid_frame:
            return  # the peer would read the abort as payload; closing tells it enough
        try:
            self._connection.settimeout(1.0)
            self._connection.sendall(abort_frame(message))
            socket.socket.shutdown(self._connection, socket.SHUT_WR)
            deadline = time.monotonic() + 1.0
            # Closing with unread input would reset the connection and could destroy the abort frame on its way.
            while time.monotonic() < deadline and socket.socket.recv(self._connection, 1 << 16):
                pass
        except (OSError, ValueError):
            pass  # the link is gone already; the peer sees it closed


def _chunks(header: bytes, payload: memoryview) -> list[memoryview]:
    """The frame as one short first record, header included, and the rest of the payload without a copy."""
    first = _RECORD - len(header)
    rest = [payload[first:]] if len(payload) > first else []
    return [memoryview(header + payload[:first]), *rest]


def connect(
    host: str, port: int, context: ssl.SSLContext, role: str, timeout: float, connect_timeout: float = 10.0
) -> TcpTransport:
    """Connect to the party that must prove to be `role`.

    Raises ProtocolError when nobody answers and HandshakeError when somebody else does.
    """
    where = f"{role} at {host}:{port}"
    try:
        raw = socket.create_connection((host, port), connect_timeout)
    except TimeoutError:
        raise ProtocolError(f"{where}: no answer within {connect_timeout:g} s; check address and firewall") from None
    except OSError as error:
        raise ProtocolError(f"{where}: cannot connect ({error.strerror or error}); is it running?") from error
    return _secure(raw, context, where, {role}, timeout, connect_timeout, server=False)


def accept(
    raw: socket.socket,
    context: ssl.SSLContext,
    roles: set[str],
    timeout: float,
    connect_timeout: float = 10.0,
) -> TcpTransport:
    """Finish the TLS handshake of an accepted connection whose other end must prove to be one of `roles`."""
    try:
        name = "{}:{}".format(*raw.getpeername()[:2])
    except OSError:
        name = "a peer that left"
    return _secure(raw, context, name, roles, timeout, connect_timeout, server=True)


def _secure(
    raw: socket.socket,
    context: ssl.SSLContext,
    where: str,
    roles: set[str],
    timeout: float,
    connect_timeout: float,
    server: bool,
) -> TcpTransport:
    expected = " or ".join(sorted(roles))
    raw.settimeout(connect_timeout)
    try:
        name = None if server else expected
        connection = context.wrap_socket(raw, server_side=server, server_hostname=name)
    except TimeoutError:
        raw.close()
        raise HandshakeError(f"{where}: no TLS handshake within {connect_timeout:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raw.close()
        raise CertificateError(f"{where}: certificate refused: {error.verify_message}; expected {expected}") from error
    except OSError as error:
        raw.close()
        reason = getattr(error, "reason", None) or error.strerror or error
        raise HandshakeError(f"{where}: TLS handshake failed ({reason}); does it speak autorep's TLS 1.3?") from error
    found = peer_roles(connection)
    if not found & roles:
        connection.close()
        raise CertificateError(f"{where}: certificate names {', '.join(sorted(found))}; expected {expected}")
    return TcpTransport(connection, next(iter(found & roles)), timeout)
