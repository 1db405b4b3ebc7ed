"""The dealer as a service: correlated randomness for any number of server pairs, whose data it never sees.

A pair is known by its name, its program and its comparison protocol. Its blinding is kept in the state folder, so that
a restarted dealer continues with the same one and the kits already delivered stay good.
"""

from __future__ import annotations

import hashlib
import json
import queue
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from autorep import private
from autorep.errors import AutorepError, HandshakeError
from autorep.mpc.blinding import Blinding
from autorep.mpc.comparisons import COMPARISONS, ComparisonName
from autorep.mpc.dealer import Dealer
from autorep.mpc.kit import KitBuffer
from autorep.mpc.transport import Transport, handshake
from autorep.mpc.transport_tcp import TcpTransport
from autorep.program.files import program_hash
from autorep.program.ir import Program
from autorep.service.dealer_link import AT_ONCE, DEALER_HELLO
from autorep.service.dealer_watch import DealerMetrics
from autorep.service.logs import event
from autorep.service.messages import ALIVE, receive_message, send_message
from autorep.service.models import MODEL_LIMIT, unpack_program
from autorep.service.queries import MOST_AT_ONCE

_ALIVE_SECONDS = 5.0
_IN_MEMORY = 1 << 28  # bytes of kits on their way to one pair; beyond, they wait on disk, one at a time


class _Half(NamedTuple):
    """A kit of party 1 that waits for party 0 to store its own."""

    name: str
    kit: KitBuffer | BinaryIO


@dataclass
class _Pair:
    """One pair of servers and one program."""

    dealer: Dealer
    outbox: queue.Queue[_Half] = field(default_factory=lambda: queue.Queue(maxsize=2 * AT_ONCE))
    lock: threading.Lock = field(default_factory=threading.Lock)
    follower: object | None = None  # identity of party 1's present connection


class DealerService:
    """Serves authenticated connections of servers; `serve_link` runs in one thread per connection.

    Args:
        state: folder for the pairs' blinding, or None to draw a new one at every start.
    """

    def __init__(self, state: Path | None) -> None:
        self._state = state
        self._pairs: dict[tuple[str, str, str], _Pair] = {}
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        self.metrics = DealerMetrics()
        self.dealt = 0

    def serve_link(self, transport: TcpTransport) -> None:
        """Register one server, then deal to it until it leaves."""
        handshake(transport, DEALER_HELLO)
        hello = receive_message(transport)
        index, comparison = hello.get("party"), str(hello.get("comparison"))
        if transport.peer != f"party{index}" or comparison not in COMPARISONS:
            message = f"certificate of {transport.peer}, but it registers as party {index} with {comparison!r}"
            transport.abort(message)
            raise HandshakeError(message)
        program = self._program(transport, str(hello.get("program")))
        pair = self._pair(str(hello.get("pair")), program, cast(ComparisonName, comparison))
        blinding = pair.dealer.blinding
        send_message(transport, {"blinding_id": blinding.id.hex(), "seed": blinding.seeds[int(str(index))].hex()})
        self.metrics.connected.labels(f"party{index}").inc()
        event("server connected", party=index, pair=hello.get("pair"), program=hello.get("program"))
        try:
            if index == 0:
                self._lead(transport, pair)
            else:
                self._follow(transport, pair, float(hello.get("alive_seconds", _ALIVE_SECONDS)))
        finally:
            self.metrics.connected.labels(f"party{index}").dec()

    def _program(self, transport: Transport, name: str) -> Program:
        with self._lock:
            known = self._programs.get(name)
        send_message(transport, {"send_program": known is None})
        if known is not None:
            return known
        archive = bytes(transport.receive("program", limit=MODEL_LIMIT))
        try:
            program = unpack_program(archive)
            found = program_hash(program)
        except AutorepError as error:
            transport.abort(f"the program could not be read: {error}")
            raise
        if found != name:
            message = f"the program sent has hash {found}, not {name} as announced"
            transport.abort(message)
            raise HandshakeError(message)
        with self._lock:
            return self._programs.setdefault(name, program)

    def _pair(self, name: str, program: Program, comparison: ComparisonName) -> _Pair:
        key = (name, program_hash(program), comparison)
        with self._lock:
            if key not in self._pairs:
                blinding = self._blinding(key)
                self._pairs[key] = _Pair(Dealer(program, blinding, comparison))
            return self._pairs[key]

    def _blinding(self, key: tuple[str, str, str]) -> Blinding:
        if self._state is None:
            return Blinding()
        name = hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]
        path = self._state / f"{name}.json"
        if path.exists():
            values = json.loads(path.read_text(encoding="utf-8"))
            seed0, seed1 = (bytes.fromhex(seed) for seed in values["seeds"])
            return Blinding(bytes.fromhex(values["blinding_id"]), (seed0, seed1))
        blinding = Blinding()
        values = {"blinding_id": blinding.id.hex(), "seeds": [seed.hex() for seed in blinding.seeds]}
        private.write_text(path, json.dumps(values))
        return blinding

    def _lead(self, transport: Transport, pair: _Pair) -> None:
        """Party 0 asks for kits; its own goes out first, the other one to party 1's thread."""
        while not self.stopping.is_set():
            wish = receive_message(transport)
            wanted, batch = min(int(wish.get("deal", 0)), AT_ONCE), int(wish.get("batch", 1))
            if not 1 <= batch <= MOST_AT_ONCE:
                transport.abort(f"kits for {batch} queries at once are wanted; at most {MOST_AT_ONCE} are made")
                return
            if wanted <= 0:
                send_message(transport, ALIVE)
            elif pair.follower is None:
                send_message(transport, {"wait": 0.5, "reason": "party 1 is not connected to the dealer"})
            elif (waiting := pair.outbox.qsize()) > AT_ONCE or waiting * max(pair.dealer.kit_bytes(batch)) > _IN_MEMORY:
                send_message(
                    transport, {"coming": 0, "wait": 0.02, "reason": "party 1 has not taken the last kits yet"}
                )
            else:
                self._deal(transport, pair, wanted, batch)

    def _deal(self, transport: Transport, pair: _Pair, count: int, batch: int) -> None:
        """So many kits, each dealt while the one before is sent. Party 1 gets its half once party 0 has stored its own.

        So kits come evenly, not several at once, and whoever waits for them is served evenly, too.
        """
        count = max(1, min(count, _IN_MEMORY // max(pair.dealer.kit_bytes(batch))))
        send_message(transport, {"coming": count})
        with ThreadPoolExecutor(1, "autorep-deal") as dealing:
            made = dealing.submit(self._make, pair, batch)
            for left in reversed(range(count)):
                halves = self._await(transport, made)
                if left:  # meanwhile
                    made = dealing.submit(self._make, pair, batch)
                _send_kit(transport, halves[0])
                if receive_message(transport).get("stored"):
                    self._hand_over(pair, halves[1])

    def _make(self, pair: _Pair, batch: int) -> tuple[_Half, _Half]:
        """Deal one kit."""
        sizes = pair.dealer.kit_bytes(batch)
        sinks = self._sink(sizes[0]), self._sink(sizes[1])
        with pair.lock:
            name = pair.dealer.deal_to(sinks, batch).hex()
        return _Half(name, sinks[0]), _Half(name, sinks[1])

    def _await(self, transport: Transport, made: Future[tuple[_Half, _Half]]) -> tuple[_Half, _Half]:
        """A kit that is being dealt; the other end hears now and then that it takes its time."""
        while not wait([made], _ALIVE_SECONDS).done:
            send_message(transport, ALIVE)
        return made.result()

    def _sink(self, size: int) -> KitBuffer | BinaryIO:
        """Where a kit waits until it is delivered: in memory at its final size, a large one in a nameless file."""
        if size <= _IN_MEMORY:
            return KitBuffer(size)
        return cast(BinaryIO, tempfile.TemporaryFile(dir=self._state))

    def _hand_over(self, pair: _Pair, half: _Half) -> None:
        try:
            pair.outbox.put(half, timeout=1.0)
        except queue.Full:
            self.metrics.wasted.inc()
            event("kit thrown away", reason="party 1 does not take it", kit=half.name)

    def _follow(self, transport: Transport, pair: _Pair, alive_seconds: float) -> None:
        """Party 1 receives what party 0 asked for."""
        me = pair.follower = object()
        _drain(pair.outbox)  # of an earlier connection; party 0 finds out and deletes its halves
        try:
            while not self.stopping.is_set() and pair.follower is me:
                try:
                    half = pair.outbox.get(timeout=min(alive_seconds, _ALIVE_SECONDS))
                except queue.Empty:
                    send_message(transport, ALIVE)
                    continue
                _send_kit(transport, half)
                if receive_message(transport).get("stored"):
                    self.dealt += 1
                    self.metrics.dealt.inc()
        finally:
            if pair.follower is me:
                pair.follower = None


def _send_kit(transport: Transport, half: _Half) -> None:
    half.kit.seek(0)
    send_message(transport, {"kit": half.name})
    transport.send_file("kit", half.kit)


def _drain(box: queue.Queue[Any]) -> None:
    while True:
        try:
            box.get_nowait()
        except queue.Empty:
            return
