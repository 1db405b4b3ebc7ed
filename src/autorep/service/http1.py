"""HTTP/1.1 over TLS, as much of it as a client of this service needs: small requests, whole answers, kept connections.

A library for all of HTTP takes longer for two requests than two servers take for a small network.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

_REST = 60.0  # seconds a connection is kept for the next request; servers keep it a little longer
_GOODBYE = 1.0
_HEAD_LIMIT = 1 << 16
_BODY_LIMIT = 1 << 26


class HttpError(Exception):
    """No answer: the server was not reached, or what came is not HTTP."""


@dataclass(frozen=True)
class Response:
    """One answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes = field(repr=False)

    def json(self) -> Any:
        """The content as JSON; ValueError if it is none."""
        return json.loads(self.content)


class _Connection:
    """One TLS connection, for one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._since = reader, writer, time.monotonic()

    @property
    def usable(self) -> bool:
        """Whether another request may go this way: neither closed by the server nor about to be."""
        fresh = time.monotonic() - self._since < _REST
        return fresh and not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(self, request: bytes) -> tuple[Response, bool]:
        """The answer to a request, and whether the connection stays open."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError("the answer is not HTTP")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(rest[:3])
        content = b"" if status in (204, 304) else await self._content(headers)
        self._since = time.monotonic()
        return Response(status, headers, content), headers.get("connection", "").lower() != "close"

    async def _content(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks()
        length = int(headers["content-length"])
        if not 0 <= length <= _BODY_LIMIT:
            raise ValueError(f"the answer announces {length} bytes")
        return await self._reader.readexactly(length)

    async def _chunks(self) -> bytes:
        """A body whose length is told piece by piece, as a proxy may send it."""
        content = bytearray()
        while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            if not 0 < size <= _BODY_LIMIT - len(content):
                raise ValueError("the answer is too long")
            content += (await self._reader.readexactly(size + 2))[:-2]
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
        return bytes(content)

    def cut(self) -> None:
        """End it at once."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already, and the connection with it
            self._writer.transport.abort()

    async def close(self) -> None:
        """End it as TLS wants it."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await self._writer.wait_closed()


class Connections:
    """To one server, for one event loop.

    Args:
        url: https://…; trusted: what its certificate is checked against.
        headers: sent with every request; timeout: seconds for one request.
    """

    def __init__(self, url: str, trusted: ssl.SSLContext, headers: Mapping[str, str], timeout: float) -> None:
        self.base_url = url.rstrip("/")
        self._trusted, self._timeout = trusted, timeout
        parts = urlsplit(self.base_url)
        self._host, self._port, self._prefix = parts.hostname or "", parts.port or 443, parts.path
        self.has_token = "Authorization" in headers
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "autorep", **headers}
        self._proxy = _proxy(self._host)
        self._idle: list[_Connection] = []

    async def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> Response:
        """One request and its answer; HttpError where there is none, with the cause behind it."""
        fields = {**self._headers, **(headers or {})}
        if content is not None:
            fields["Content-Length"] = str(len(content))
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        request = "\r\n".join([*lines, "", ""]).encode("latin-1") + (content or b"")
        try:
            async with asyncio.timeout(self._timeout):
                return await self._ask(request)
        except TimeoutError:
            raise HttpError(f"no answer within {self._timeout:g} s") from None
        except asyncio.IncompleteReadError as error:
            raise HttpError("the connection was closed in the middle of the answer") from error
        except (OSError, ValueError, KeyError, asyncio.LimitOverrunError) as error:
            raise HttpError(str(error) or type(error).__name__) from error

    async def _ask(self, request: bytes) -> Response:
        connection = self._take_idle() or await self._dial()
        try:
            response, stays = await connection.ask(request)
        except BaseException:  # also when cancelled: what comes next on it would answer another request
            connection.cut()
            raise
        if stays:
            self._idle.append(connection)
        else:
            connection.cut()
        return response

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.cut()
        return None

    async def _dial(self) -> _Connection:
        if self._proxy is None:
            streams = asyncio.open_connection(
                self._host, self._port, limit=_HEAD_LIMIT, ssl=self._trusted, server_hostname=self._host
            )
            return _Connection(*await streams)
        reader, writer = await asyncio.open_connection(
            self._proxy.hostname, self._proxy.port or 8080, limit=_HEAD_LIMIT
        )
        try:
            target = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
            writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{_credentials(self._proxy)}\r\n".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if answer.split(b" ", 2)[1:2] != [b"200"]:
                raise ConnectionError(f"the proxy {self._proxy.hostname} refuses to connect to {target}")
            await writer.start_tls(self._trusted, server_hostname=self._host)
        except BaseException:
            writer.close()
            raise
        return _Connection(reader, writer)

    async def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            await self._idle.pop().close()


def _proxy(host: str) -> SplitResult | None:
    """The proxy that the environment (HTTPS_PROXY, NO_PROXY) names for a host."""
    url = urllib.request.getproxies().get("https")
    return urlsplit(url) if url and not urllib.request.proxy_bypass(host) else None


def _credentials(proxy: SplitResult) -> str:
    if proxy.username is None:
        return ""
    text = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(text.encode()).decode()}\r\n"
