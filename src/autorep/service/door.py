"""The door of the client API: how many connections may be open, and which must leave when there are too many.

Anybody may connect; nobody may keep the others out by it. A connection that works on a request stays. All others can be
asked to leave: at once when a newcomer needs the place (those longest without a request go first), and in any case
after some seconds without headers, some more without a body, or a minute or so of rest between requests. So a flood of
idle or slow connections only shortens the patience shown to connections that do nothing. Queries may
take three quarters of the room; whoever asks for health or figures has the rest.

The door needs no help of the web server: it is a listening socket that looks at every connection it accepts, and an
ASGI layer that hears when requests begin and end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from autorep.errors import ConfigError

_ROOM_FOR_THE_REST = 256  # descriptors kept for links between servers, dealer, stores and files
SWEEP_SECONDS = 1.0
NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NO_ROOM_WAIT = 0.01
Peer = tuple[str, int]


@dataclass(frozen=True)
class DoorSettings:
    """Patience and room.

    Attributes:
        connections: open at the same time; per_address: from one address.
        request_seconds: for TLS handshake and headers of the first request; body_seconds: for a body, a little longer
            than the API waits, which says what is wrong; rest_seconds: between requests.
    """

    connections: int = 1024
    per_address: int = 256
    request_seconds: float = 10.0
    body_seconds: float = 35.0
    rest_seconds: float = 75.0


@dataclass(eq=False)
class _Guest:
    """One open connection; `since` it does nothing but what it `awaits`, unless it works on requests."""

    connection: socket.socket
    address: str
    since: float
    working: int = 0
    known: bool = False  # it has had an answer
    awaits: Literal["headers", "body", "request"] = "headers"


class Door:
    """Counts who is in, and shows out who must leave.

    `turned_away` hears one word for every connection that is closed for want of room or patience.
    """

    def __init__(
        self,
        settings: DoorSettings,
        turned_away: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self._turned_away, self._clock = settings, turned_away, clock
        self._room = max(16, min(settings.connections, _descriptors() - _ROOM_FOR_THE_REST))
        self._guests: dict[Peer, _Guest] = {}  # those longest without a request first
        self._count: Counter[str] = Counter()
        self._working = 0  # connections that work on a request

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, peer: Peer, connection: socket.socket) -> bool:
        """A connection was accepted; False: there is no room, close it."""
        address = peer[0]
        if self._count[address] >= self.settings.per_address and not self._show_out("address full", address):
            self._turned_away("address full")
            return False
        if len(self._guests) >= self._room and not self._show_out("full"):
            self._turned_away("full")
            return False
        self._guests[peer] = _Guest(connection, address, self._clock())
        self._count[address] += 1
        return True

    def left(self, peer: Peer) -> None:
        """A connection was closed."""
        guest = self._guests.pop(peer, None)
        if guest is not None:
            self._working -= bool(guest.working)
            self._count[guest.address] -= 1
            if not self._count[guest.address]:
                del self._count[guest.address]

    def headed(self, peer: Peer) -> None:
        """The headers of a request are there."""
        if (guest := self._guests.get(peer)) is not None:
            guest.awaits, guest.since = "body", self._clock()

    @property
    def crowded(self) -> bool:
        """Whether so many connections work already that another query must be refused."""
        return self._working >= self._room * 3 // 4

    def began(self, peer: Peer) -> None:
        """A request is complete enough to be worked on."""
        if (guest := self._guests.get(peer)) is not None:
            self._working += not guest.working
            guest.working += 1

    def ended(self, peer: Peer) -> None:
        """A request was answered."""
        if (guest := self._guests.pop(peer, None)) is not None:
            guest.working, guest.known, guest.since = guest.working - 1, True, self._clock()
            guest.awaits = "request"
            self._working -= not guest.working
            self._guests[peer] = guest  # to the end: it was the last to do something

    def sweep(self) -> None:
        """Show out who has done nothing for too long."""
        now, settings = self._clock(), self.settings
        patience = {
            "headers": settings.request_seconds,
            "body": settings.body_seconds,
            "request": settings.rest_seconds,
        }
        for peer, guest in list(self._guests.items()):
            if not guest.working and now - guest.since > patience[guest.awaits]:
                self._leave(peer, "rest" if guest.awaits == "request" else "slow")

    def out_of_descriptors(self) -> None:
        """A connection must be refused because the process has no descriptor left; who is idle longest leaves too."""
        self._turned_away("descriptors")
        self._show_out("descriptors")

    def _show_out(self, reason: str, address: str | None = None) -> bool:
        """Make room by closing the connection that has been idle longest; strangers before those who had answers."""
        for known in (False, True):
            for peer, guest in self._guests.items():
                if not guest.working and guest.known == known and address in (None, guest.address):
                    self._leave(peer, reason)
                    return True
        return False

    def _leave(self, peer: Peer, reason: str) -> None:
        guest = self._guests[peer]
        self.left(peer)
        self._turned_away(reason)
        with contextlib.suppress(OSError):
            guest.connection.shutdown(socket.SHUT_RDWR)  # its owner, the event loop, notices and closes it

    # ------------------------------------------------------------------ where it stands

    def listen(self, address: tuple[str, int]) -> socket.socket:
        """A listening socket that counts every connection it accepts."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listening = _ListeningSocket(self, family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit it. asyncio sets it only for sockets made with an explicit protocol, and without it a
            # body waits some 40 ms for the client's acknowledgement of the headers.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.bind(address)
        except OSError as error:
            listening.close()
            raise ConfigError(
                f"cannot listen for clients at {address[0]}:{address[1]} (--listen): {error.strerror or error}"
            ) from None
        return listening

    def layer(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """The ASGI application, with requests counted. A body still on its way does not count as work."""

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            peer, began = tuple(scope["client"] or ("", 0)), False
            self.headed(peer)
            if scope["method"] == "POST" and self.crowded:
                self._turned_away("crowded")
                await _too_crowded(send)
                self.began(peer)
                self.ended(peer)
                return

            async def heard() -> Any:
                nonlocal began
                message = await receive()
                if not began and message["type"] == "http.request" and not message.get("more_body"):
                    began = True
                    self.began(peer)
                return message

            try:
                await app(scope, heard, send)
            finally:
                if not began:
                    self.began(peer)
                self.ended(peer)

        return counted


async def _too_crowded(send: Callable[[Any], Any]) -> None:
    """An answer to a query without looking at it."""
    message = "too many queries wait here already; ask again in a moment"
    body = json.dumps({"status": 503, "message": message, "retry_with_new_masks": True}).encode()
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _ListeningSocket(socket.socket):
    """Accepts for asyncio, which must not learn that the process is out of descriptors: it would try as often as the
    queue of connections is long, in vain, log every try, and do so anew each second.
    """

    def __init__(self, door: Door, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._door = door
        self._spare = os.open(os.devnull, os.O_RDONLY)  # closed to accept, and refuse, when there is no other

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that may stay; BlockingIOError when none waits."""
        while True:
            try:
                descriptor, address = self._accept()  # type: ignore[attr-defined]  # as socket.accept does it
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._refuse()
                continue
            connection = _Connection(self._door, (address[0], address[1]), self.family, self.type, 0, descriptor)
            if self._door.enter(connection.peer, connection):
                return connection, address
            connection.close()

    def close(self) -> None:
        super().close()
        self._free_spare()

    def _refuse(self) -> None:
        """Turn the next connection away: the process has no descriptor for it. An idle one makes room for later."""
        self._door.out_of_descriptors()
        self._free_spare()
        try:
            descriptor, _ = self._accept()  # type: ignore[attr-defined]  # as above
            os.close(descriptor)
        except OSError as error:
            time.sleep(_NO_ROOM_WAIT)  # the system's want, not this process's; or another thread was quicker
            raise BlockingIOError from error
        finally:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _free_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


class _Connection(socket.socket):
    def __init__(self, door: Door, peer: Peer, *arguments: int) -> None:
        super().__init__(*arguments)
        self._door, self.peer = door, peer

    def close(self) -> None:
        super().close()
        self._door.left(self.peer)


def _descriptors() -> int:
    """Open files this process may have; raised to what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
