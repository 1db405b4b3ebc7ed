"""The client's HTTP: answers of every form it must understand, and those it must refuse, from a scripted server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from autorep.mpc.tls import make_keys
from autorep.service.http1 import Connections, HttpError, Response
from autorep.service.web import authority

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "keys", {"party0": ["localhost", "127.0.0.1"]})
    return folder / "keys"


class Script:
    """Answers the requests of all connections with the given bytes, in order; b"" closes the connection instead.

    A request for /silence gets half an answer.
    """

    def __init__(self, keys: Path, *answers: bytes) -> None:
        self._answers = list(answers)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(keys / "party0" / "certificate.pem", keys / "party0" / "key.pem")
        self.trusted = authority(keys / "client" / "ca.pem")
        self.requests: list[bytes] = []
        self.connections = 0

    @contextlib.asynccontextmanager
    async def client(self, timeout: float = 60.0, **headers: str) -> AsyncIterator[Connections]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        connections = Connections(f"https://localhost:{self.port}/at/", self.trusted, headers, timeout)
        try:
            yield connections
        finally:
            await connections.close()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self._answers:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"/silence" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
                    continue
                _, _, rest = head.lower().partition(b"content-length: ")
                self.requests.append(head + await reader.readexactly(int(rest.split(b"\r\n")[0] or b"0")))
                if not (answer := self._answers.pop(0)):
                    break
                writer.write(answer)
                if not answer.startswith(b"HTTP/1.1 2") or b"cut" in answer:
                    break
        writer.close()


def ask(script: Script, work: Callable[[Connections], Awaitable[list[Response]]], **options: float) -> list[Response]:
    async def run() -> list[Response]:
        async with script.client(**options) as connections:  # type: ignore[arg-type]
            return await work(connections)

    return asyncio.run(run())


async def twice(connections: Connections) -> list[Response]:
    return [await connections.request("GET", "/x"), await connections.request("GET", "/y")]


def test_requests_share_a_connection_and_say_what_they_must(keys: Path) -> None:
    script = Script(keys, OK, b"HTTP/1.1 204 No Content\r\nX-Some:  thing \r\n\r\n", OK)

    async def work(connections: Connections) -> list[Response]:
        return [
            await connections.request("POST", "/a?b", {"Content-Type": "x/y"}, b"body"),
            await connections.request("DELETE", "/a"),
            await connections.request("GET", "/c"),
        ]

    first, second, third = ask(script, work)
    assert (first.status, first.content, third.content) == (200, b"ok", b"ok")
    assert (second.status, second.headers["x-some"], second.content) == (204, "thing", b"")
    assert script.connections == 1
    post, delete, _ = script.requests
    assert post.startswith(b"POST /at/a?b HTTP/1.1\r\nHost: localhost:%d\r\n" % script.port)
    assert b"\r\nContent-Type: x/y\r\nContent-Length: 4\r\n\r\nbody" in post
    assert b"Content-Length" not in delete


def test_a_body_may_come_in_chunks(keys: Path) -> None:
    script = Script(
        keys, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n", OK
    )
    assert [response.content for response in ask(script, twice)] == [b"abcde", b"ok"]
    assert script.connections == 1


@pytest.mark.parametrize("extra", [b"Connection: close\r\nX-Note: cut\r\n", b"X-Note: cut\r\n"])
def test_a_closed_connection_is_replaced(keys: Path, extra: bytes) -> None:
    script = Script(keys, b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: 0\r\n\r\n", OK)

    async def work(connections: Connections) -> list[Response]:
        first = await connections.request("GET", "/")
        while connections._idle and connections._idle[0].usable:
            await asyncio.sleep(0.01)
        return [first, await connections.request("GET", "/")]

    assert ask(script, work)[1].content == b"ok"
    assert script.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: cut\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + bytes(100_000) + b"\r\n\r\n",
    ],
)
def test_what_is_no_whole_answer_is_an_error(keys: Path, answer: bytes) -> None:
    with pytest.raises(HttpError):
        ask(Script(keys, answer), twice)


def test_silence_is_given_up_and_the_next_request_begins_afresh(keys: Path) -> None:
    script = Script(keys, OK)

    async def work(connections: Connections) -> list[Response]:
        with pytest.raises(HttpError, match=r"no answer within 0\.5 s"):
            await connections.request("GET", "/silence")
        connections._timeout = 60.0
        return [await connections.request("GET", "/")]

    assert ask(script, work, timeout=0.5)[0].content == b"ok"


def test_a_foreign_certificate_is_refused(keys: Path) -> None:
    script = Script(keys, OK)
    script.trusted = ssl.create_default_context()
    with pytest.raises(HttpError, match="certificate verify failed"):
        ask(script, twice)


def test_a_proxy_of_the_environment_is_used(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, heads = Script(keys, OK), []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        there = await asyncio.open_connection("127.0.0.1", script.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(forward(reader, there[1]), forward(there[0], writer))

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                sink.write(data)
        sink.close()

    async def run() -> Response:
        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("https_proxy", f"http://me:pass%21@{address}")
        monkeypatch.setenv("no_proxy", "")
        async with script.client() as connections:
            response = await connections.request("GET", "/")
        proxy.close()
        return response

    assert asyncio.run(run()).content == b"ok"
    assert heads[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % script.port)
    assert b"Proxy-Authorization: Basic bWU6cGFzcyE=\r\n" in heads[0]
