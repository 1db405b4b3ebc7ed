"""Frames, ledgers, time-outs, aborts and TLS links between two threads or processes."""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.errors import HandshakeError, PeerAbort, ProtocolError
from autorep.mpc import link_records, transport, transport_tcp
from autorep.mpc.tls import client_context, make_keys, server_context
from autorep.mpc.transport import (
    FRAME_OVERHEAD,
    MESSAGE_LIMIT,
    FrameReader,
    Throttled,
    Transport,
    abort_frame,
    frame_header,
    handshake,
    label_hash,
    memory_pair,
)
from autorep.mpc.transport_tcp import TcpTransport, accept, connect

Pair = tuple[Transport, Transport]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    make_keys(directory, {"party0": ["127.0.0.1", "localhost"]})
    return directory


def both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Run two ends at once; an exception is returned as the result."""
    results: list[Any] = [None, None]

    def run(index: int, work: Callable[[], Any]) -> None:
        try:
            results[index] = work()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i, w)) for i, w in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "an end hangs"
    return results[0], results[1]


def tcp_pair(keys: Path, timeout: float = 60.0, roles: tuple[str, str] = ("party0", "party1")) -> tuple[Any, Any]:
    """Party 0 accepts, party 1 connects; results may be exceptions."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        return both(
            lambda: accept(listener.accept()[0], server_context(keys / roles[0]), {"party1"}, timeout),
            lambda: connect("127.0.0.1", port, client_context(keys / roles[1]), "party0", timeout),
        )


@pytest.fixture(params=["memory", "tcp", "throttled"])
def pair(request: pytest.FixtureRequest, keys: Path) -> Iterator[Pair]:
    ends = tcp_pair(keys) if request.param == "tcp" else memory_pair()
    if request.param == "throttled":
        ends = tuple(Throttled(end, 1e9, 0.001) for end in ends)
    yield ends
    for end in ends:
        end.close()


def test_exchange_swaps_payloads_and_both_ledgers_agree(pair: Pair) -> None:
    left, right = pair
    sent = os.urandom(100_000), os.urandom(50_000)
    got = both(
        lambda: bytes(left.exchange("conv1", sent[0], len(sent[1]))),
        lambda: bytes(right.exchange("conv1", sent[1], len(sent[0]))),
    )
    assert got == (sent[1], sent[0])
    a, b = left.ledger.total("online"), right.ledger.total("online")
    assert (a.sent, a.received, a.rounds) == (100_000 + FRAME_OVERHEAD, 50_000 + FRAME_OVERHEAD, 1)
    assert (a.sent, a.received) == (b.received, b.sent)


def test_large_messages_both_ways_do_not_deadlock(pair: Pair) -> None:
    left, right = pair
    array = np.arange(4_000_000, dtype=np.uint64)
    got = both(lambda: left.exchange("big", array, array.nbytes), lambda: right.exchange("big", array, array.nbytes))
    for answer in got:
        assert np.array_equal(np.frombuffer(answer, np.uint64), array)


def test_one_way_messages_and_phases_are_booked_apart(pair: Pair) -> None:
    left, right = pair
    left.phase = right.phase = "offline"

    def receiver() -> bytes:
        first, empty = right.receive("seed", 16), right.receive("nothing")
        return bytes(first) + bytes(empty)

    def sender() -> None:
        left.send("seed", b"s" * 16)
        left.send("nothing", b"")

    assert both(sender, receiver)[1] == b"s" * 16
    assert left.ledger.total("online").sent == 0
    assert {k: (v.sent, v.rounds) for k, v in left.ledger.layers("offline").items()} == {
        "seed": (48, 0),
        "nothing": (32, 0),
    }
    assert right.ledger.layers("offline")["seed"].rounds == 1


def test_files_of_any_length_go_in_pieces(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CHUNK_BYTES", 1000)
    left, right = pair
    for length in (0, 1, 999, 1000, 1001, 12_345):
        data = bytes(np.random.default_rng(length).integers(0, 256, length, np.uint8))
        pieces = both(
            lambda data=data: left.send_file("kit", io.BytesIO(data)),
            lambda length=length: [bytes(piece) for piece in right.receive_file("kit", length)],
        )[1]
        assert b"".join(pieces) == data
        assert all(len(piece) <= 1000 for piece in pieces)


def test_a_frame_over_its_limit_is_refused_by_its_header_alone() -> None:
    for expect, limit in ((None, 100), (100, 100), (None, MESSAGE_LIMIT)):
        reader = FrameReader(1, 0, "message", expect, limit)
        target = reader.target()
        assert target is not None
        target[:FRAME_OVERHEAD] = frame_header(1, 0, "message", limit + 1)
        with pytest.raises(ProtocolError, match=r"at most|expected 100"):
            reader.advance(FRAME_OVERHEAD)
        assert len(reader.payload) == 0


def test_abort_reaches_the_peer_with_its_reason(pair: Pair) -> None:
    left, right = pair
    error = both(lambda: left.abort("store is empty"), lambda: right.exchange("conv1", b"xy", 2))[1]
    assert isinstance(error, PeerAbort)
    assert "store is empty" in str(error)
    with pytest.raises(ProtocolError, match="already failed"):
        right.send("conv1", b"")


def test_wrong_length_gives_both_ends_an_error(pair: Pair) -> None:
    left, right = pair

    def right_end() -> None:
        right.exchange("conv1", b"abc", 2)
        right.receive("next")

    errors = both(lambda: left.exchange("conv1", b"ab", 2), right_end)
    assert isinstance(errors[0], ProtocolError)
    assert "3 bytes, expected 2" in str(errors[0])
    assert isinstance(errors[1], PeerAbort)


def test_parties_at_different_operations_notice(pair: Pair) -> None:
    left, right = pair
    errors = both(lambda: left.exchange("conv1", b"a", 1), lambda: right.exchange("conv2", b"a", 1))
    assert any("another operation" in str(error) for error in errors)
    assert all(isinstance(error, ProtocolError) for error in errors)


def test_silent_peer_times_out(keys: Path) -> None:
    for left, right in (memory_pair(0.2), tcp_pair(keys, 0.2)):
        with pytest.raises(ProtocolError, match=r"nothing moved on the link for 0\.2 s"):
            left.exchange("conv1", b"a" * 10, 10)
        right.close()


def test_peer_that_never_reads_times_out(keys: Path) -> None:
    left, right = tcp_pair(keys, 0.3)
    with pytest.raises(ProtocolError, match="nothing moved"):
        left.send("big", bytes(64 << 20))
    right.close()


def test_interrupt_wakes_a_waiting_thread(pair: Pair) -> None:
    left, _ = pair
    threading.Timer(0.1, left.interrupt).start()
    with pytest.raises(ProtocolError, match="broke"):  # and not for want of movement
        left.receive("never")


def test_closed_peer_is_reported_at_once(keys: Path) -> None:
    left, right = tcp_pair(keys)
    right.close()
    with pytest.raises(ProtocolError, match="broke"):
        left.exchange("conv1", b"a", 1)


def test_throttle_delays_by_size_and_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = (Throttled(end, 1e6, 0.02) for end in memory_pair())
    slept: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", slept.append)
    both(lambda: left.exchange("x", bytes(30_000), 30_000), lambda: right.exchange("x", bytes(30_000), 30_000))
    assert slept == [pytest.approx(0.02 + (30_000 + FRAME_OVERHEAD) / 1e6)] * 2


def test_handshake_returns_the_peers_hello(pair: Pair) -> None:
    left, right = pair
    got = both(
        lambda: handshake(left, {"party": 0, "program": "ab", "lane": 3}),
        lambda: handshake(right, {"party": 1, "program": "ab", "lane": 3}),
    )
    assert got[0]["party"] == 1
    assert got[1]["party"] == 0
    assert left.ledger.total("online").sent == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"program": "cd"}, "program is"),
        ({"party": 0}, "party is 0 here and 0"),
        ({"extra": None}, "extra is"),
    ],
)
def test_handshake_names_what_differs_at_both_ends(pair: Pair, change: dict[str, Any], text: str) -> None:
    left, right = pair
    errors = both(
        lambda: handshake(left, {"party": 0, "program": "ab"}),
        lambda: handshake(right, {"party": 1, "program": "ab", **change}),
    )
    for error in errors:
        assert isinstance(error, HandshakeError)
        assert text in str(error)


def test_certificate_of_another_role_is_refused(keys: Path) -> None:
    accepted, connected = tcp_pair(keys, roles=("party0", "dealer"))
    assert isinstance(accepted, HandshakeError)
    assert "names dealer; expected party1" in str(accepted)
    assert isinstance(connected, HandshakeError)  # told at once, not with its first frame
    accepted, connected = tcp_pair(keys, roles=("dealer", "party1"))
    assert isinstance(connected, HandshakeError)
    assert "party0" in str(connected)
    if isinstance(accepted, TcpTransport):
        accepted.close()


def test_certificate_of_another_authority_is_refused(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path, {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        errors = both(
            lambda: accept(listener.accept()[0], server_context(keys / "party0"), {"party1"}, 60),
            lambda: connect("127.0.0.1", port, client_context(tmp_path / "party1"), "party0", 60),
        )
    assert all(isinstance(error, HandshakeError) for error in errors)


def test_refused_connection_says_so(keys: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else can take the port, and nobody listens
        port = silent.getsockname()[1]
        with pytest.raises(ProtocolError, match="cannot connect"):
            connect("127.0.0.1", port, client_context(keys / "party1"), "party0", 1)


def feed(reader: FrameReader, stream: bytes, cuts: list[int]) -> bytes:
    """Give a reader the stream in pieces; returns what it did not take."""
    position = 0
    pieces = iter(cuts)
    while (target := reader.target()) is not None and position < len(stream):
        count = min(next(pieces, 1 << 20), len(target), len(stream) - position)
        target[:count] = stream[position : position + count]
        position += count
        reader.advance(count)
    return stream[position:]


@given(
    payload=st.binary(max_size=200),
    cuts=st.lists(st.integers(1, 40), max_size=20),
    step=st.integers(0, 2**64 - 1),
)
@settings(max_examples=60, deadline=None)
def test_reader_takes_exactly_one_frame_however_it_is_cut(payload: bytes, cuts: list[int], step: int) -> None:
    stream = frame_header(1, step, "conv", len(payload)) + payload
    for expect in (None, len(payload)):
        reader = FrameReader(1, step, "conv", expect, 1000)
        assert feed(reader, stream + b"tail", cuts) == b"tail"
        assert bytes(reader.payload) == payload


@given(
    stream=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 40), max_size=20),
    expect=st.sampled_from([None, 0, 40]),
)
@settings(max_examples=100, deadline=None)
def test_reader_refuses_noise_without_any_other_error(stream: bytes, cuts: list[int], expect: int | None) -> None:
    reader = FrameReader(1, 0, "conv", expect, 1000)
    if len(stream) < FRAME_OVERHEAD:
        feed(reader, stream, cuts)
        assert reader.target() is not None
        return
    with pytest.raises(ProtocolError):
        feed(reader, stream, cuts)


@given(position=st.integers(0, FRAME_OVERHEAD - 1), flip=st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_any_altered_header_byte_is_noticed(position: int, flip: int) -> None:
    frame = bytearray(frame_header(1, 5, "conv", 4) + b"data")
    if position in (5, 6, 7):
        return  # padding, which carries no meaning
    frame[position] ^= flip
    with pytest.raises(ProtocolError):
        feed(FrameReader(1, 5, "conv", 4, 1000), bytes(frame) + bytes(3000), [])


@given(message=st.text(max_size=100))
@settings(max_examples=30, deadline=None)
def test_abort_frames_are_understood_at_any_step(message: str) -> None:
    with pytest.raises(PeerAbort) as caught:
        feed(FrameReader(1, 7, "conv", 12, 1000), abort_frame(message), [3, 5])
    assert message in str(caught.value)


def send_record(link: TcpTransport, text: bytes) -> None:
    """Seal and send what no transport would."""
    link._connection.setblocking(True)
    link._connection.sendall(link._sealer.seal(text))


def test_record_longer_than_its_frame_is_refused(keys: Path) -> None:
    left, right = tcp_pair(keys)
    send_record(right, frame_header(1, 0, "conv1", 4) + b"data" + b"more")
    with pytest.raises(ProtocolError, match="4 bytes after the end"):
        left.receive("conv1", 4)
    right.close()


def test_abort_longer_than_its_frame_is_refused() -> None:
    reader = FrameReader(1, 0, "conv1", 100, 100)
    text = abort_frame("store is empty") + b"more"
    target = reader.target()
    assert target is not None
    target[: len(text)] = text
    with pytest.raises(ProtocolError, match="4 bytes follow the end"):
        reader.advance(len(text))


def test_record_changed_on_its_way_is_refused(keys: Path) -> None:
    left, right = tcp_pair(keys)
    record = bytearray(right._sealer.seal(frame_header(1, 0, "conv1", 4) + b"data"))
    record[-1] ^= 1
    right._connection.setblocking(True)
    right._connection.sendall(record)
    with pytest.raises(ProtocolError, match="changed, repeated or lost"):
        left.receive("conv1", 4)
    right.close()


def odd_peer(keys: Path, behave: Callable[[ssl.SSLSocket], Any]) -> tuple[Any, Any]:
    """What party 0 makes of a party 1 with the right certificate that behaves in its own way once TLS is up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def dial() -> Any:
            raw = socket.create_connection(listener.getsockname(), 30)
            with client_context(keys / "party1").wrap_socket(raw, server_hostname="party0") as connection:
                return behave(connection)

        return both(lambda: accept(listener.accept()[0], server_context(keys / "party0"), {"party1"}, 5), dial)


def read_all(connection: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass


@pytest.mark.parametrize(
    "first_words",
    [frame_header(1, 0, "message", 100) + bytes(100), b"autorep records 1" + bytes(32)],
    ids=["frames inside TLS", "another version"],
)
def test_end_that_does_not_agree_on_record_keys_is_refused(keys: Path, first_words: bytes) -> None:
    def behave(connection: ssl.SSLSocket) -> None:
        connection.sendall(first_words)
        read_all(connection)

    error, _ = odd_peer(keys, behave)
    assert isinstance(error, HandshakeError)
    assert "both ends must run the same release" in str(error)


def test_agreeing_on_keys_has_one_time_limit_in_all(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends a byte now and then gets no longer than one that sends nothing."""
    monkeypatch.setattr(transport_tcp, "agree", lambda connection, _: link_records.agree(connection, 2.0))
    length = len(b"autorep records 2") + 32

    def behave(connection: ssl.SSLSocket) -> int:
        for sent in range(length):
            time.sleep(0.1)
            try:
                connection.sendall(bytes(1))
            except OSError:
                return sent
        return length

    error, sent = odd_peer(keys, behave)
    assert isinstance(error, HandshakeError), "each byte came in time, all of them did not"
    assert "no keys for records agreed" in str(error)
    assert "same release" not in str(error), f"all {sent} bytes were awaited"


def test_what_an_end_sealed_does_not_open_at_that_end(keys: Path) -> None:
    """Not even when its peer sends its own secret back to it."""

    def behave(connection: ssl.SSLSocket) -> socket.socket:
        message = b""
        while len(message) < len(b"autorep records 2") + 32:
            message += connection.recv(64)
        connection.sendall(message)
        return connection.unwrap()

    link, _ = odd_peer(keys, behave)
    assert isinstance(link, TcpTransport)
    assert link._sealer._key != link._opener._key
    record = bytes(link._sealer.seal(frame_header(1, 0, "conv1", 4) + b"data"))
    position = 0
    while not link._opener.size:
        target = link._opener.target()
        target[:] = record[position : position + len(target)]
        position += len(target)
        link._opener.advance(len(target))
    with pytest.raises(ConnectionError, match="changed, repeated or lost"):
        link._opener.open_into(memoryview(bytearray(link._opener.size)))
    link.close()


def test_cut_between_two_records_is_noticed_by_who_waits(keys: Path) -> None:
    left, right = tcp_pair(keys)
    send_record(right, frame_header(1, 0, "conv1", 4) + b"data")
    right.close()
    assert bytes(left.receive("conv1", 4)) == b"data"
    with pytest.raises(ProtocolError, match="broke"):
        left.receive("conv2", 4)


def test_link_shows_no_plain_text(keys: Path) -> None:
    """What passes on the wire, recorded between the two ends, holds neither payload nor label nor key."""
    with socket.create_server(("127.0.0.1", 0)) as front, socket.create_server(("127.0.0.1", 0)) as back:
        seen: list[bytes] = []
        relay = threading.Thread(target=record_both_ways, args=(front, back, seen), daemon=True)
        relay.start()
        left, right = both(
            lambda: accept(back.accept()[0], server_context(keys / "party0"), {"party1"}, 60),
            lambda: connect("127.0.0.1", front.getsockname()[1], client_context(keys / "party1"), "party0", 60),
        )
    secret = b"a secret of the model" * 2000
    both(lambda: left.exchange("conv1", secret, len(secret)), lambda: right.exchange("conv1", secret, len(secret)))
    start, label = frame_header(1, 0, "conv1", len(secret))[:8], label_hash("conv1")
    shown = [left._sealer._key, right._sealer._key, b"a secret of the model", start, label]
    left.close()
    right.close()
    relay.join(120)
    wire = b"".join(seen)
    assert len(wire) > 2 * len(secret)
    assert not any(text in wire for text in shown)


def record_both_ways(front: socket.socket, back: socket.socket, seen: list[bytes]) -> None:
    near, far = front.accept()[0], socket.create_connection(back.getsockname())
    other = {near: far, far: near}
    while other:
        for ready in select.select(list(other), [], [], 60)[0]:
            data = ready.recv(1 << 16)
            if not data:
                near.close()
                far.close()
                return
            seen.append(data)
            other[ready].sendall(data)


def test_truncated_frame_is_reported(keys: Path) -> None:
    left, right = tcp_pair(keys)
    send_record(right, frame_header(1, 0, "conv1", 100) + b"short")
    right.close()
    with pytest.raises(ProtocolError, match="broke"):
        left.receive("conv1", 100)


def test_replayed_frame_is_refused(keys: Path) -> None:
    left, right = tcp_pair(keys)
    frame = frame_header(1, 0, "conv1", 4) + b"data"
    send_record(right, frame)
    send_record(right, frame)
    assert bytes(left.receive("conv1", 4)) == b"data"
    with pytest.raises(ProtocolError, match="replayed"):
        left.receive("conv1", 4)
    right.close()
