"""The short way of a query through the web server: what an ordinary client posts, read and answered in two steps.

A request that arrived whole and in the plainest form (one `POST` of shares, each header once, a length, nothing to
negotiate) is handed to the API as it is, and its answer leaves in one piece. Everything else, whatever is odd about it,
goes the long way through uvicorn, h11 and Starlette, which know all of HTTP. Both ways end in the same `Api` and answer
alike. For a small network the long way takes longer than the two servers take for the query.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from autorep.service.api import SAFE_HEADERS, Api
from autorep.service.door import Door
from autorep.service.queries import Answer, QueryFailure
from autorep.service.shares import CONTENT_TYPE

_HEAD_LIMIT = 4096
_HEAD = re.compile(
    rb"POST /v1/programs/([0-9a-f]{1,64})/queries/([0-9a-f]{32}) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: ?[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\r\n)+)\r\n"
)
_NEGOTIATE = frozenset(("connection", "expect", "origin", "te", "trailer", "transfer-encoding", "upgrade"))


class Address(NamedTuple):
    """Who asks."""

    host: str
    port: int


@dataclass(frozen=True)
class PlainQuery:
    """A query as it was posted; like a Starlette request to whoever only reads."""

    path_params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    client: Address | None = None


def plain_query(data: bytes, client: Address | None = None) -> PlainQuery | None:
    """The query that these bytes are, all of it and nothing else; None where it takes the long way to find out."""
    found = _HEAD.match(data, 0, _HEAD_LIMIT)
    if found is None:
        return None
    headers: dict[str, str] = {}
    lines = found[3].decode("ascii").split("\r\n")[:-1]
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" ")
    length = headers.get("content-length", "")
    if len(headers) < len(lines) or "host" not in headers or not headers.keys().isdisjoint(_NEGOTIATE):
        return None
    if headers.get("content-type") != CONTENT_TYPE or length != str(len(data) - found.end()):
        return None
    names = {"program": found[1].decode(), "query": found[2].decode()}
    return PlainQuery(names, headers, data[found.end() :], client)


class ShortWay(H11Protocol):
    """One connection of a client.

    While a query runs on the short way, the long way knows nothing of it: what else arrives is kept for later.
    """

    def __init__(self, api: Api, door: Door, **facts: Any) -> None:
        super().__init__(**facts)
        self._api, self._door = api, door
        self._queries: Sequence[asyncio.Future[Answer]] | None = None  # those of the request that runs, if one does
        self._missing = 0  # of them
        self._early = b""  # what came after it
        self._leaving = False  # once it is answered

    def data_received(self, data: bytes) -> None:
        if self._queries is not None:
            self._early += data
            self.flow.pause_reading()
        elif not self._begins(data):
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        queries, self._queries = self._queries, None
        for query in queries or ():
            query.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._queries is None:
            super().shutdown()
        else:
            self._leaving = True

    def _begins(self, data: bytes) -> bool:
        """Whether this is a query that goes the short way; then it is on its way."""
        fresh = self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE
        if not fresh or self.conn.trailing_data[0] or self.client is None or self._door.crowded:
            return False
        asked = plain_query(data, Address(*self.client))
        if asked is None or not self._api.takes(asked, len(asked.body)):
            return False
        self._unset_keepalive_if_required()
        self._door.began(self.client)
        try:
            self._queries = self._api.begin(asked, asked.body)
        except QueryFailure as failure:
            self._queries = ()
            self._answer(self._api.refused(asked, failure))
            return True
        self._missing = len(self._queries)
        for query in self._queries:
            query.add_done_callback(self._ended)
        return True

    def _ended(self, _: asyncio.Future[Answer]) -> None:
        self._missing -= 1
        if self._queries and not self._missing:
            self._answer(self._api.response(self._queries))

    def _answer(self, response: Response) -> None:
        """Send it, in one piece; then the connection is free for the next request."""
        first = f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}\r\n".encode()
        headers = (*self.server_state.default_headers, *response.raw_headers, *SAFE_HEADERS)
        if self._leaving:
            headers = (*headers, (b"connection", b"close"))
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join((first, *lines, b"\r\n", response.body)))
        self._queries = None
        assert self.client is not None
        self._door.ended(self.client)
        early, self._early = self._early, b""
        if self._leaving:
            self.transport.close()
        self.on_response_complete()
        if early and not self.transport.is_closing():
            self.data_received(early)
