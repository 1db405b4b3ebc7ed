"""A link over TCP: TLS 1.3 to know each other, then sealed records (`link_records`), full duplex in one thread.

One loop alternates between sending and receiving on a non-blocking socket: two parties that send large messages to each
other at the same moment do not deadlock. A record belongs to one frame.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time

from autorep.errors import CertificateError, HandshakeError, ProtocolError
from autorep.mpc.link_records import TEXT_LIMIT, Opener, Sealer, agree
from autorep.mpc.tls import peer_roles
from autorep.mpc.transport import FrameReader, Transport, abort_frame

_BURST = 4  # calls in one direction before the other gets its turn


class TcpTransport(Transport):
    """One end of a connection whose handshake is done; `peer` is the authenticated role at the other end."""

    def __init__(self, connection: socket.socket, sealer: Sealer, opener: Opener, peer: str, timeout: float) -> None:
        super().__init__(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.peer = peer
        self._connection, self._sealer, self._opener = connection, sealer, opener
        self._text = memoryview(bytearray(TEXT_LIMIT))  # of records that hold more than the reader's target
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._room = select.poll()
        self._room.register(connection, select.POLLOUT)
        self._mid_frame = False

    def writable(self) -> bool:
        return bool(self._room.poll(0))  # the system says so when a good part of its buffer is free

    def close(self) -> None:
        self._connection.close()

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):  # not connected any more is what the caller wants
            self._connection.shutdown(socket.SHUT_RDWR)

    def _transfer(self, header: bytes, payload: memoryview | None, reader: FrameReader | None) -> None:
        outgoing = None if payload is None else _Outgoing(self._sealer, header, payload)
        receiving = reader is not None and reader.target() is not None
        deadline = time.monotonic() + self.timeout
        while outgoing or receiving:
            moved = send_wait = receive_wait = 0
            if outgoing:
                self._mid_frame = True
                moved, send_wait = self._send_some(outgoing)
                if outgoing.done:
                    outgoing, self._mid_frame = None, False
            if reader is not None and receiving:
                count, receive_wait = self._receive_some(reader)
                moved += count
                receiving = reader.target() is not None
            now = time.monotonic()
            if moved:
                deadline = now + self.timeout
            if (outgoing and not send_wait) or (receiving and not receive_wait) or not (outgoing or receiving):
                continue  # there is more to move at once
            self._poll.modify(self._connection, send_wait | receive_wait)
            if not self._poll.poll(max(0.0, deadline - now) * 1000):
                raise TimeoutError

    def _send_some(self, outgoing: _Outgoing) -> tuple[int, int]:
        """Send up to a burst; returns the bytes sent and what to poll for (0: more can go at once)."""
        total = 0
        for _ in range(_BURST):
            if outgoing.done:
                break
            try:
                count = self._connection.send(outgoing.record)
            except BlockingIOError:
                return total, select.POLLOUT
            total += count
            outgoing.advance(count)
        return total, 0

    def _receive_some(self, reader: FrameReader) -> tuple[int, int]:
        """Receive up to a burst; returns the bytes received and what to poll for (0: more may be there)."""
        total = 0
        for _ in range(_BURST):
            target = reader.target()
            if target is None:
                break
            if not self._opener.size:
                try:
                    count = self._connection.recv_into(self._opener.target(len(target)))
                except BlockingIOError:
                    return total, select.POLLIN
                if not count:
                    raise ConnectionResetError("closed by the peer")
                total += count
                self._opener.advance(count)
            if self._opener.size:
                self._open(reader)
        return total, 0

    def _open(self, reader: FrameReader) -> None:
        """Give the reader a whole record: in place if it fits into the reader's target, else by a copy."""
        target, size = reader.target(), self._opener.size
        assert target is not None
        if size <= len(target):
            self._opener.open_into(target[:size])
            reader.advance(size)
            return
        text = self._text[:size]
        self._opener.open_into(text)
        while len(text):
            target = reader.target()
            if target is None:
                raise ProtocolError(f"the peer's record goes on for {len(text)} bytes after the end of its frame")
            count = min(len(target), len(text))
            target[:count] = text[:count]
            reader.advance(count)
            text = text[count:]

    def _send_abort(self, message: str) -> None:
        if self._mid_frame:
            return  # the peer would read the abort as payload; closing tells it enough
        try:
            self._connection.settimeout(1.0)
            self._connection.sendall(self._sealer.seal(abort_frame(message)))
            self._connection.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + 1.0
            # Closing with unread input would reset the connection and could destroy the abort frame on its way.
            while time.monotonic() < deadline and self._connection.recv(1 << 16):
                pass
        except (OSError, ValueError):
            pass  # the link is gone already; the peer sees it closed


class _Outgoing:
    """A frame on its way out, record by record: the header with as much of the payload as leaves whole records."""

    def __init__(self, sealer: Sealer, header: bytes, payload: memoryview) -> None:
        self._sealer = sealer
        first = min(len(payload) % TEXT_LIMIT, TEXT_LIMIT - len(header))
        self._rest = payload[first:]
        self.record = sealer.seal_both(header, payload[:first])

    @property
    def done(self) -> bool:
        return not len(self.record)

    def advance(self, count: int) -> None:
        """`count` bytes of the record were sent."""
        self.record = self.record[count:]
        if not len(self.record) and len(self._rest):
            self.record = self._sealer.seal(self._rest[:TEXT_LIMIT])
            self._rest = self._rest[TEXT_LIMIT:]


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
    try:
        sealer, opener = agree(connection, connect_timeout)
    except OSError as error:
        connection.close()
        reason = getattr(error, "reason", None) or error.strerror or error
        raise HandshakeError(f"{where}: no keys for records agreed ({reason})") from error
    raw = socket.socket(fileno=connection.detach())
    return TcpTransport(raw, sealer, opener, next(iter(found & roles)), timeout)
