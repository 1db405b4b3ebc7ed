"""Failures of the link or the peer in mid-query: both sides get a clear error in time, the next query works."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from autorep.errors import MaterialError, PeerAbort, ProtocolError
from autorep.mpc.blinding import BlindedModel
from autorep.mpc.dealer import Dealer
from autorep.mpc.local import join_output, share_input
from autorep.mpc.party import Party
from autorep.mpc.tls import client_context, make_keys, server_context
from autorep.mpc.transport import Transport, handshake
from autorep.mpc.transport_tcp import TcpTransport, accept, connect
from autorep.program import ir
from autorep.program.files import program_hash, share_parameters
from autorep.program.fixed import run_fixed
from tests.mpc.programs import Builder, prepare

TIMEOUT = 120.0  # which nothing here waits for: whoever waits in vain is told the cause, or gives up much earlier


def small_program(seed: int = 0) -> ir.Program:
    b = Builder(seed, shape=(2, 8, 8))
    b.stem(4)
    b.conv(4)
    b.activation(0.1)
    b.conv(4)
    b.activation(0.1)
    b.head(3)
    return b.program()


class Pair:
    """Two parties over TLS on loopback; `links()` makes a new connection."""

    def __init__(self, keys) -> None:
        self.keys, self.program = keys, small_program()
        self.dealer = Dealer(self.program)
        shares = share_parameters(self.program)
        self.parties = [Party(self.program, shares[i], i) for i in (0, 1)]
        self.pool = ThreadPoolExecutor(2)
        with_links = self.links()
        self.both(
            lambda i: self.parties[i].setup(
                BlindedModel(self.program, i, with_links[i], self.dealer.blinding.seeds[i], self.dealer.blinding.id)
            )
        )
        for link in with_links:
            link.close()

    def links(self) -> tuple[TcpTransport, TcpTransport]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            server = self.pool.submit(
                lambda: accept(listener.accept()[0], server_context(self.keys / "party0"), {"party1"}, TIMEOUT)
            )
            client = connect("127.0.0.1", port, client_context(self.keys / "party1"), "party0", TIMEOUT)
            return server.result(), client

    def both(self, work: Callable[[int], object]) -> list[object]:
        """Results or exceptions of the two sides."""
        futures = [self.pool.submit(work, i) for i in (0, 1)]
        return [future.exception() or future.result() for future in futures]

    def query(self, links: tuple[Transport, Transport]) -> list[object]:
        x = np.random.default_rng(0).normal(0, 1, (1, *self.program.input.shape))
        inputs, kits = share_input(self.program, x), self.dealer.deal().kits
        return self.both(lambda i: self.parties[i].run(links[i], prepare(self.parties[i], kits[i]), inputs[i]))

    def assert_next_query_works(self) -> None:
        links = self.links()
        share0, share1 = self.query(links)
        x = np.random.default_rng(0).normal(0, 1, (1, *self.program.input.shape))
        answer = join_output(self.program, share0, share1)
        assert np.abs(answer - run_fixed(self.program, x)).max() < 5e-3
        for link in links:
            link.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[Pair]:
    keys = tmp_path_factory.mktemp("keys")
    make_keys(keys, {})
    pair = Pair(keys)
    yield pair
    pair.pool.shutdown()


class Saboteur:
    """Wraps a link; does something at the n-th exchange."""

    def __init__(self, link: TcpTransport, at: int, act: Callable[[TcpTransport], object]) -> None:
        self._link, self._left, self._act = link, at, act

    def exchange(self, label: str, payload, expect: int):
        self._left -= 1
        if self._left == 0:
            self._act(self._link)
        return self._link.exchange(label, payload, expect)

    def __getattr__(self, name: str):
        return getattr(self._link, name)


def close_socket(link: TcpTransport) -> None:
    link._connection.close()


def send_garbage(link: TcpTransport) -> None:
    link._connection.setblocking(True)
    link._connection.sendall(b"\x00" * 64)
    link._connection.setblocking(False)


def replay(link: TcpTransport) -> None:
    link._sent_steps -= 1


@pytest.mark.parametrize("act", [close_socket, send_garbage, replay])
def test_both_sides_end_with_a_clear_error_and_the_next_query_works(pair, act):
    link0, link1 = pair.links()
    outcomes = pair.query((link0, Saboteur(link1, 3, act)))
    for outcome in outcomes:
        assert isinstance(outcome, ProtocolError | OSError | ValueError), outcome
        assert "nothing moved" not in str(outcome), "the cause is seen at once"
    assert isinstance(outcomes[0], ProtocolError)
    assert len(str(outcomes[0])) > 20
    pair.assert_next_query_works()


def test_a_peer_that_stalls_is_given_up_and_the_next_query_works(pair):
    link0, link1 = pair.links()
    link0.timeout, given_up = 1.0, threading.Event()
    link0.abort = lambda message, abort=link0.abort: (given_up.set(), abort(message))
    outcomes = pair.query((link0, Saboteur(link1, 3, lambda _: given_up.wait(TIMEOUT))))
    assert isinstance(outcomes[0], ProtocolError)
    assert "nothing moved on the link for 1 s" in str(outcomes[0])
    assert isinstance(outcomes[1], ProtocolError), "who comes back finds that it was given up"
    pair.assert_next_query_works()


def test_an_error_at_one_party_reaches_the_other_as_its_reason(pair):
    link0, link1 = pair.links()

    def complain(link: TcpTransport) -> None:
        link.abort("party 1: the disk is full")
        raise ProtocolError("party 1: the disk is full")

    outcomes = pair.query((link0, Saboteur(link1, 2, complain)))
    assert isinstance(outcomes[0], PeerAbort)
    assert "the disk is full" in str(outcomes[0])
    pair.assert_next_query_works()


def test_another_program_is_noticed_before_anything_runs(pair):
    links = pair.links()
    hashes = [program_hash(pair.program), program_hash(small_program(seed=1)) + "0"]
    outcomes = pair.both(lambda i: handshake(links[i], {"party": i, "program": hashes[i]}))
    for outcome in outcomes:
        assert isinstance(outcome, ProtocolError)
        assert "program" in str(outcome)
    pair.assert_next_query_works()


def test_kits_of_another_program_party_or_blinding_are_refused(pair):
    other = Dealer(small_program(seed=1)).deal().kits
    again = Dealer(pair.program).deal().kits
    for kit, reason in (
        (other[0], "blinding|program"),
        (pair.dealer.deal().kits[1], "party"),
        (again[0], "blinding"),
    ):
        with pytest.raises(MaterialError, match=reason):
            prepare(pair.parties[0], kit)


def test_a_prepared_query_runs_once(pair):
    links = pair.links()
    kits = pair.dealer.deal().kits
    prepared = [prepare(pair.parties[i], kits[i]) for i in (0, 1)]
    inputs = share_input(pair.program, np.zeros((1, *pair.program.input.shape)))
    pair.both(lambda i: pair.parties[i].run(links[i], prepared[i], inputs[i]))
    with pytest.raises(MaterialError, match="used already"):
        pair.parties[0].run(links[0], prepared[0], inputs[0])


PEER = """
import sys, time
from pathlib import Path
from autorep.mpc.tls import client_context
from autorep.mpc.transport_tcp import connect
link = connect("127.0.0.1", int(sys.argv[1]), client_context(Path(sys.argv[2]) / "party1"), "party0", 300)
print("up", flush=True)
link.exchange("input/open", bytes(8 * 128), 8 * 128)
time.sleep(600)
"""


def test_a_killed_peer_is_noticed_at_once(pair):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", PEER, str(listener.getsockname()[1]), str(pair.keys)]
        peer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        link = accept(listener.accept()[0], server_context(pair.keys / "party0"), {"party1"}, TIMEOUT)
    assert peer.stdout is not None
    assert peer.stdout.readline() == "up\n"
    kit = prepare(pair.parties[0], pair.dealer.deal().kits[0])
    threading.Timer(0.5, peer.kill).start()
    with pytest.raises(ProtocolError, match="broke|closed"):  # and not for want of movement
        pair.parties[0].run(link, kit, np.zeros((1, *pair.program.input.shape), np.uint64))
    peer.wait()
    peer.stdout.close()
    pair.assert_next_query_works()
