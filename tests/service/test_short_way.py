"""The short way of a query: taken by nothing that HTTP's own parser reads otherwise; the answers of the long way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from autorep.mpc.transport import Entry
from autorep.program.ir import Program
from autorep.service.api import Api, ApiSettings
from autorep.service.door import Door, DoorSettings
from autorep.service.metrics import Metrics
from autorep.service.queries import Answer, QueryFailure
from autorep.service.shares import CONTENT_TYPE
from autorep.service.short_way import Address, ShortWay, plain_query

PROGRAM, QUERY, IMAGE = 64 * "a", 32 * "b", 8 * 64
PEER = ("192.0.2.1", 5000)


def request(body: bytes = bytes(IMAGE), path: str = f"/v1/programs/{PROGRAM}/queries/{QUERY}", **headers: str) -> bytes:
    """A request as the client writes it, with further headers or others."""
    fields = {"Host": "server", "Content-Type": CONTENT_TYPE, "Content-Length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body


# ---------------------------------------------------------------------- which requests take it


def test_what_an_ordinary_client_posts_is_read_whole() -> None:
    found = plain_query(request(b"12345678", Authorization="Bearer x: y"), Address(*PEER))
    assert found is not None
    assert found.path_params == {"program": PROGRAM, "query": QUERY}
    assert found.headers["authorization"] == "Bearer x: y"
    assert found.body == b"12345678"
    assert found.client is not None
    assert found.client.host == PEER[0]


@pytest.mark.parametrize(
    "data",
    [
        request()[:-1],
        request() + b"\0",
        request(Transfer_Encoding="chunked"),
        request(Connection="close"),
        request(Expect="100-continue"),
        request(Origin="https://page"),
        request(Upgrade="websocket"),
        request(Content_Length="0512"),
        request(Content_Length="+512"),
        request(content_length="512"),
        request(host="other"),
        request(Content_Type="text/plain"),
        request(path=f"/v1/programs/{PROGRAM}/queries/{QUERY}?x=1"),
        request(path=f"/v1/programs/{PROGRAM}/queries/{QUERY.upper()}"),
        request(path=f"//v1/programs/{PROGRAM}/queries/{QUERY}"),
        request().replace(b"POST", b"PUT"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request().replace(b"Host: server\r\n", b""),
        request().replace(b"Host: server\r\n", b"Host: server\r\n more\r\n"),
        request().replace(b"Host: server", b"Host : server"),
        request().replace(b"Host: server", b"Host: ser\xffver"),
        request().replace(b"\r\n", b"\n"),
        request(X="y" * 8000),
        b"",
    ],
)
def test_whatever_is_odd_takes_the_long_way(data: bytes) -> None:
    assert plain_query(data) is None


@given(
    edits=st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=3), st.integers(0, 3)), max_size=3),
    header=st.text(st.characters(max_codepoint=255), max_size=12),
)
@example(edits=[], header="value")
@example(edits=[(0, b"\r\n", 0)], header="")
@settings(max_examples=400, deadline=None)
def test_what_takes_it_is_what_the_parser_of_http_reads(edits: list[tuple[int, bytes, int]], header: str) -> None:
    data = request(b"body").replace(b"Host", b"X-Other: " + header.encode("latin-1") + b"\r\nHost")
    for place, new, old in edits:
        data = data[:place] + new + data[place + old :]
    found = plain_query(data)
    if found is None:
        return
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(data)
    head, body, end = (parser.next_event() for _ in range(3)) if found.body else (parser.next_event(), None, None)
    assert isinstance(head, h11.Request)
    assert (head.method, head.http_version) == (b"POST", b"1.1")
    assert head.target.decode() == "/v1/programs/{program}/queries/{query}".format(**found.path_params)
    assert {name.decode(): value.decode() for name, value in head.headers} == dict(found.headers)
    assert len(head.headers) == len(found.headers)
    if body is not None:
        assert bytes(body.data) == found.body
        assert isinstance(end, h11.EndOfMessage)
    assert parser.trailing_data == (b"", False)


# ---------------------------------------------------------------------- a connection


class Session:
    """A session that keeps what is handed in until the test decides."""

    def __init__(self, program: Program) -> None:
        self.program, self.hash = program, PROGRAM
        self.handed_in: list[tuple[str, list[np.ndarray]]] = []
        self.queries: list[asyncio.Future[Answer]] = []
        self.refusal: QueryFailure | None = None

    def submit(self, client: str, query: str, shares: list[np.ndarray], payer: str) -> list[asyncio.Future[Answer]]:
        if self.refusal is not None:
            raise self.refusal
        self.handed_in.append((query, shares))
        self.queries = [asyncio.get_running_loop().create_future() for _ in shares]
        return self.queries

    def answer(self) -> None:
        for number, query in enumerate(self.queries):
            query.set_result(Answer(np.full((1, 10), number, np.uint64), 0.25, Entry(sent=5, rounds=3), 7))


class Wire(asyncio.Transport):
    """Stands for a client's connection; counts what is written, call by call."""

    def __init__(self) -> None:
        super().__init__({"peername": PEER, "sockname": ("192.0.2.2", 443)})
        self.written: list[bytes] = []
        self.closed = self.paused = False

    def write(self, data: Any) -> None:
        if data:
            self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Scene:
    """One connection to an API with one program."""

    def __init__(self, program: Program) -> None:
        self.session, self.door, self.wire = Session(program), Door(DoorSettings()), Wire()
        self.api = Api(0, {PROGRAM: self.session}, Metrics(), ApiSettings())  # type: ignore[dict-item]
        self.state = ServerState()
        config = Config(self.door.layer(self.api.app()), log_config=None, lifespan="off")
        self.connection = ShortWay(self.api, self.door, config=config, server_state=self.state, app_state={})
        self.door.enter(PEER, None)  # type: ignore[arg-type]
        self.connection.connection_made(self.wire)

    async def until(self, condition: Callable[[], Any]) -> None:
        for _ in range(100_000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not happen")

    async def ask(self, data: bytes) -> h11.Response:
        """One request, answered as soon as it is handed in; the answer's head, with its body in `content`."""
        self.wire.written.clear()
        before = len(self.session.handed_in)
        self.connection.data_received(data)
        await self.until(lambda: len(self.session.handed_in) > before or self.wire.written)
        if len(self.session.handed_in) > before:
            self.session.answer()
        await self.until(lambda: self.connection._queries is None and self.state.total_requests > 0)
        self.state.total_requests = 0
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(b"".join(self.wire.written))
        head = parser.next_event()
        assert isinstance(head, h11.Response)
        self.content = b""
        while isinstance(piece := parser.next_event(), h11.Data):
            self.content += bytes(piece.data)
        assert isinstance(piece, h11.EndOfMessage)
        return head


def play(program: Program, play_: Callable[[Scene], Any]) -> None:
    async def scene() -> None:
        await play_(Scene(program))

    asyncio.run(scene())


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("refused", [False, True])
def test_both_ways_answer_alike_and_the_short_one_in_one_piece(program: Program, images: int, refused: bool) -> None:
    async def both(scene: Scene) -> None:
        if refused:
            scene.session.refusal = QueryFailure(503, "not ready", 2)
        found = []
        for further in ({}, {"Expect": "nothing"}, {}):  # the second one goes the long way
            head = await scene.ask(request(bytes(images * IMAGE), **further))
            headers = {name: value for name, value in head.headers if name != b"date"}
            found.append((head.status_code, headers, scene.content, len(scene.wire.written)))
        assert found[0] == found[2]
        assert found[0][:3] == found[1][:3]
        assert found[0][0] == (503 if refused else 200)
        assert (found[0][3], found[1][3]) == (1, 2), "pieces"
        assert scene.door._guests[PEER].working == 0

    play(program, both)


def test_unknown_programs_and_bodies_of_a_wrong_length_take_the_long_way(program: Program) -> None:
    async def odd(scene: Scene) -> None:
        other = f"/v1/programs/{64 * 'c'}/queries/{QUERY}"
        for data, status in (
            (request(path=other), 404),
            (request(bytes(7)), 422),
            (request(bytes(33 * IMAGE)), 413),
            (request(b""), 422),
        ):
            assert (await scene.ask(data)).status_code == status
            if scene.wire.closed:
                return
        assert not scene.session.handed_in

    play(program, odd)


def test_what_arrives_while_a_query_runs_is_answered_after_it(program: Program) -> None:
    async def pipelined(scene: Scene) -> None:
        scene.connection.data_received(request())
        scene.connection.data_received(request(path=f"/v1/programs/{PROGRAM}/queries/{32 * 'c'}"))
        assert [query for query, _ in scene.session.handed_in] == [QUERY]
        assert scene.wire.paused
        scene.session.answer()
        await scene.until(lambda: len(scene.session.handed_in) == 2)
        assert not scene.wire.paused
        assert scene.session.handed_in[1][0] == 32 * "c"
        scene.session.answer()
        await scene.until(lambda: len(scene.wire.written) == 2)

    play(program, pipelined)


def test_a_client_that_leaves_withdraws_its_query(program: Program) -> None:
    async def leave(scene: Scene) -> None:
        scene.connection.data_received(request(bytes(2 * IMAGE)))
        scene.connection.connection_lost(None)
        assert [query.cancelled() for query in scene.session.queries] == [True, True]
        await asyncio.sleep(0)
        assert not scene.wire.written

    play(program, leave)


def test_a_server_that_stops_answers_what_runs_and_closes(program: Program) -> None:
    async def stop(scene: Scene) -> None:
        scene.connection.data_received(request())
        scene.connection.shutdown()
        assert not scene.wire.closed
        scene.session.answer()
        await scene.until(lambda: scene.wire.closed)
        assert b"connection: close" in scene.wire.written[0]

    play(program, stop)


def test_an_idle_connection_closes_when_the_server_stops(program: Program) -> None:
    async def stop(scene: Scene) -> None:
        assert (await scene.ask(request())).status_code == 200
        scene.connection.shutdown()
        assert scene.wire.closed

    play(program, stop)


def test_a_crowd_at_the_door_is_told_so(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "crowded", True)

    async def crowd(scene: Scene) -> None:
        assert (await scene.ask(request())).status_code == 503
        assert not scene.session.handed_in

    play(program, crowd)
