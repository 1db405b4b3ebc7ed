"""Links between two parties: framed, counted, with time-outs; in memory, throttled, and the base of the TCP one.

A frame is a fixed header of 32 bytes and a payload:

    magic and version (4) | kind (1) | zero (3) | step (8) | hash of the label (8) | payload length (8)

The step counts the frames of one direction, so a replayed, dropped or reordered frame is noticed; the label is the
name of the operation, so two parties that drift apart notice at once. Payloads are raw bytes, never pickles.
One Transport belongs to one thread at a time; queries in flight at the same time use one Transport each.
"""

from __future__ import annotations

import functools
import hashlib
import json
import queue
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from autorep.errors import HandshakeError, PeerAbort, ProtocolError
from autorep.mpc.formats import formats

Phase = Literal["online", "offline"]
Buffer = Any  # whatever offers a contiguous buffer: bytes, memoryview, numpy array

FRAME_OVERHEAD = 32
PROTOCOL_VERSION = 1
_HEADER = struct.Struct("<4sB3xQ8sQ")
_MAGIC = b"ARP" + bytes([PROTOCOL_VERSION])
_DATA, _HELLO, _ABORT = 1, 2, 3
_ABORT_LIMIT = 2048
_HELLO_LIMIT = 65536
CHUNK_BYTES = 1 << 24
MESSAGE_LIMIT = 1 << 22  # of a frame whose length the receiver does not know


@dataclass
class Entry:
    """What one operation moved: bytes with headers, rounds, seconds spent waiting and moving, processor time of it."""

    sent: int = 0
    received: int = 0
    rounds: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, other: Entry) -> None:
        self.sent += other.sent
        self.received += other.received
        self.rounds += other.rounds
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds

    def divided(self, count: int) -> Entry:
        """One of `count` equal parts; all take part in every round."""
        parts = self.sent // count, self.received // count, self.rounds
        return Entry(*parts, self.seconds / count, self.cpu_seconds / count)


class Ledger:
    """Bytes, rounds and seconds of a link, per label and phase, in order of first use."""

    def __init__(self) -> None:
        self._entries: dict[Phase, dict[str, Entry]] = {"online": {}, "offline": {}}

    def record(self, phase: Phase, label: str, entry: Entry) -> None:
        self._entries[phase].setdefault(label, Entry()).add(entry)

    def layers(self, phase: Phase = "online") -> dict[str, Entry]:
        """One entry per label."""
        return dict(self._entries[phase])

    def total(self, phase: Phase = "online") -> Entry:
        """The sum over all labels."""
        total = Entry()
        for entry in self._entries[phase].values():
            total.add(entry)
        return total


class FrameReader:
    """Takes in exactly one frame, piece by piece, and checks it; knows nothing about sockets.

    Write received bytes into `target()` and report them with `advance(count)` until `target()` is None; then
    `payload` holds the frame's payload. Anything but the frame that is due raises ProtocolError, an abort PeerAbort.
    """

    def __init__(self, kind: int, step: int, label: str, expect: int | None, limit: int) -> None:
        self.payload: memoryview = memoryview(b"")
        self._due = (kind, step, label_hash(label))
        self._label, self._expect, self._limit = label, expect, limit
        self._frame = np.empty(FRAME_OVERHEAD + (expect or 0), np.uint8).data  # a payload lies behind its header
        self._filled, self._end = 0, len(self._frame)
        self._in_header, self._aborting = True, False

    def target(self) -> memoryview | None:
        """Where the next bytes belong, or None when the frame is complete."""
        return self._frame[self._filled : self._end] if self._filled < self._end else None

    def advance(self, count: int) -> None:
        """`count` bytes were written to the target."""
        self._filled += count
        if self._in_header and self._filled >= FRAME_OVERHEAD:
            self._in_header = False
            self._open(*_HEADER.unpack_from(self._frame))
        if self._filled < self._end:
            return
        if self._filled > self._end:
            raise ProtocolError(f"{self._label}: {self._filled - self._end} bytes follow the end of the peer's frame")
        self.payload = self._frame[FRAME_OVERHEAD:]
        if self._aborting:
            raise PeerAbort(f"the peer stopped: {bytes(self.payload).decode('utf-8', 'replace')}")

    def _open(self, magic: bytes, kind: int, step: int, label: bytes, length: int) -> None:
        if magic != _MAGIC:
            raise ProtocolError(
                f"{self._label}: the peer sent {magic!r} where a frame of protocol version {PROTOCOL_VERSION} must "
                "begin; both ends must run the same release of autorep"
            )
        if kind == _ABORT:
            self._aborting, self._expect, self._limit = True, None, _ABORT_LIMIT
        else:
            self._check(kind, step, label)
        if self._expect is not None and length != self._expect:
            raise ProtocolError(
                f"{self._label}: the peer's frame has {length} bytes, expected {self._expect}; the two parties "
                "do not run the same program or batch"
            )
        if length > self._limit:
            raise ProtocolError(f"{self._label}: the peer announces {length} bytes, at most {self._limit} are allowed")
        self._end = FRAME_OVERHEAD + length
        if len(self._frame) != self._end:  # of unknown length, or an abort
            count, received = min(self._filled, self._end), self._frame
            self._frame = np.empty(self._end, np.uint8).data
            self._frame[:count] = received[:count]

    def _check(self, kind: int, step: int, label: bytes) -> None:
        due_kind, due_step, due_label = self._due
        if kind != due_kind:
            raise ProtocolError(f"{self._label}: frame of kind {kind} where kind {due_kind} is due")
        if step != due_step:
            raise ProtocolError(
                f"{self._label}: frame {step} arrived where frame {due_step} is due; it was replayed, lost or reordered"
            )
        if label != due_label:
            raise ProtocolError(f"{self._label}: the peer is at another operation; the parties are out of step")


class Source(Protocol):
    """What a file is sent from, piece by piece."""

    def read(self, size: int, /) -> bytes | memoryview: ...


class Transport(ABC):
    """One end of a link to the peer: framing, steps, ledger and failures; subclasses only move the bytes.

    Attributes:
        timeout: seconds without any progress after which a step fails.
        phase: "online" or "offline"; where the ledger books what moves now.
        ledger: may be replaced by a fresh one at any time, to count one query apart.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.phase: Phase = "online"
        self.ledger = Ledger()
        self._sent_steps = 0
        self._received_steps = 0
        self._failure: str | None = None

    def exchange(self, label: str, payload: Buffer, expect: int) -> memoryview:
        """Send one frame and receive the peer's frame of the same step, both at once: one round.

        Bytes: 32 + len(payload) sent, 32 + expect received. Returns the peer's payload in a fresh buffer.
        """
        return self._step(_DATA, label, payload, self._reader(_DATA, label, expect, expect))

    def send(self, label: str, payload: Buffer) -> None:
        """Send one frame without waiting for anything: no round."""
        self._step(_DATA, label, payload, None)

    def receive(self, label: str, expect: int | None = None, limit: int = MESSAGE_LIMIT) -> memoryview:
        """Wait for one frame, of exactly `expect` bytes or else of at most `limit`: one round.

        A frame that announces more is refused before any of it is received.
        """
        return self._step(_DATA, label, None, self._reader(_DATA, label, expect, expect or limit))

    def send_file(self, label: str, source: Source) -> None:
        """Send what is left of a binary file, of any length, in frames of at most CHUNK_BYTES."""
        while chunk := source.read(CHUNK_BYTES):
            self.send(label, chunk)

    def receive_file(self, label: str, length: int) -> Iterator[memoryview]:
        """The pieces of a file of exactly `length` bytes, as they arrive."""
        for start in range(0, length, CHUNK_BYTES):
            yield self.receive(label, min(CHUNK_BYTES, length - start))

    def abort(self, message: str) -> None:
        """Tell the peer why this side stops, then close. The message must hold no secret."""
        if self._failure is None:
            self._failure = message
            self._send_abort(message)
        self.close()

    @property
    def failed(self) -> bool:
        """Whether this link is unusable, by an error or an abort."""
        return self._failure is not None

    def writable(self) -> bool:
        """Whether a frame of a few hundred bytes would be sent without waiting."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Release the link; safe to call twice."""

    @abstractmethod
    def interrupt(self) -> None:
        """Make a step that waits in another thread fail now; the only call allowed from another thread."""

    @abstractmethod
    def _transfer(self, header: bytes, payload: memoryview | None, reader: FrameReader | None) -> None:
        """Send header and payload (unless None) while filling the reader; OSError when the link fails."""

    @abstractmethod
    def _send_abort(self, message: str) -> None:
        """Deliver an abort frame if the link still can; never raises."""

    def _reader(self, kind: int, label: str, expect: int | None, limit: int) -> FrameReader:
        return FrameReader(kind, self._received_steps, label, expect, limit)

    def _step(self, kind: int, label: str, payload: Buffer | None, reader: FrameReader | None) -> memoryview:
        if self._failure is not None:
            raise ProtocolError(f"{label}: this link already failed ({self._failure}); open a new one")
        view = None if payload is None else memoryview(payload).cast("B")
        header = b"" if view is None else frame_header(kind, self._sent_steps, label, len(view))
        started, busy = time.perf_counter(), time.thread_time()
        try:
            self._transfer(header, view, reader)
        except PeerAbort as error:
            self._failure = str(error)
            raise
        except ProtocolError as error:
            self.abort(str(error))
            raise
        except OSError as error:
            message = f"{label}: {self._explain(error)}"
            self.abort(message)
            raise ProtocolError(message) from error
        entry = Entry(seconds=time.perf_counter() - started, cpu_seconds=time.thread_time() - busy)
        if view is not None:
            self._sent_steps += 1
            entry.sent = len(header) + len(view)
        if reader is not None:
            self._received_steps += 1
            entry.received = FRAME_OVERHEAD + len(reader.payload)
            entry.rounds = 1
        if kind == _DATA:
            self.ledger.record(self.phase, label, entry)
        return reader.payload if reader is not None else memoryview(b"")

    def _explain(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return (
                f"nothing moved on the link for {self.timeout:g} s; the peer is stopped, cut off or much slower; "
                "check it, and raise the time-out if it is only slow"
            )
        return f"the link to the peer broke ({error}); check that the peer still runs"


def frame_header(kind: int, step: int, label: str, length: int) -> bytes:
    """The 32 bytes in front of a payload."""
    return _HEADER.pack(_MAGIC, kind, step, label_hash(label), length)


@functools.lru_cache(maxsize=4096)
def label_hash(label: str) -> bytes:
    """Eight bytes that stand for an operation's name."""
    return hashlib.blake2b(label.encode(), digest_size=8).digest()


def abort_frame(message: str) -> bytes:
    """A whole abort frame; overlong messages are cut."""
    text = message.encode()[:_ABORT_LIMIT]
    return frame_header(_ABORT, 0, "", len(text)) + text


def handshake(transport: Transport, hello: Mapping[str, Any]) -> dict[str, Any]:
    """Compare what both ends are about to do, before any of it: one exchange.

    Every field must be equal at both ends, except `party`, which must differ. Values are public JSON. The release's
    formats are compared too.
    Returns the peer's hello; raises HandshakeError, at both ends alike, that names the fields that do not fit.
    """
    own = json.loads(json.dumps({"protocol": PROTOCOL_VERSION, "formats": formats(), **hello}))
    reader = transport._reader(_HELLO, "hello", None, _HELLO_LIMIT)
    answer = bytes(transport._step(_HELLO, "hello", json.dumps(own).encode(), reader))
    try:
        peer = json.loads(answer)
    except ValueError:
        peer = None
    if not isinstance(peer, dict):
        message = "the peer's hello is not a JSON object; both ends must run the same release of autorep"
        transport.abort(message)
        raise HandshakeError(message)
    missing = object()
    wrong = [
        f"{key} is {own.get(key)!r} here and {peer.get(key)!r} at the peer"
        for key in sorted({*own, *peer})
        if (own.get(key, missing) == peer.get(key, missing)) == (key == "party")
    ]
    if wrong:
        message = f"the two ends do not fit together: {'; '.join(wrong)}"
        transport.abort(message)
        raise HandshakeError(message)
    return peer


class MemoryTransport(Transport):
    """One end of a link inside one process; the other end lives in another thread."""

    def __init__(self, outgoing: queue.SimpleQueue, incoming: queue.SimpleQueue, timeout: float) -> None:
        super().__init__(timeout)
        self._outgoing, self._incoming = outgoing, incoming

    def close(self) -> None:
        self._outgoing.put(None)

    def interrupt(self) -> None:
        self._incoming.put(None)

    def _transfer(self, header: bytes, payload: memoryview | None, reader: FrameReader | None) -> None:
        if payload is not None:
            self._outgoing.put(header + payload)  # a copy: the sender may reuse its buffer at once
        if reader is None:
            return
        try:
            frame = self._incoming.get(timeout=self.timeout)
        except queue.Empty:
            raise TimeoutError from None
        if frame is None:
            raise ConnectionResetError("closed by the peer")
        rest = memoryview(frame)
        while (target := reader.target()) is not None:
            count = min(len(target), len(rest))
            if not count:
                raise ConnectionResetError("closed in the middle of a frame")
            target[:count] = rest[:count]
            rest = rest[count:]
            reader.advance(count)

    def _send_abort(self, message: str) -> None:
        self._outgoing.put(abort_frame(message))


def memory_pair(timeout: float = 60.0) -> tuple[MemoryTransport, MemoryTransport]:
    """Both ends of a link inside one process."""
    forth: queue.SimpleQueue = queue.SimpleQueue()
    back: queue.SimpleQueue = queue.SimpleQueue()
    return MemoryTransport(forth, back, timeout), MemoryTransport(back, forth, timeout)


class Throttled(Transport):
    """A link slowed down to a bandwidth and a one-way delay, in user space; wrap both ends.

    A message reaches the peer no earlier than `one_way_delay + size / bytes_per_second` after it was sent. The
    sender is held for that time: exact for exchanges of equal sizes, which is what an inference consists of.
    """

    def __init__(self, inner: Transport, bytes_per_second: float, one_way_delay: float) -> None:
        super().__init__(inner.timeout)
        self._inner, self._rate, self._delay = inner, bytes_per_second, one_way_delay

    def close(self) -> None:
        self._inner.close()

    def interrupt(self) -> None:
        self._inner.interrupt()

    def _transfer(self, header: bytes, payload: memoryview | None, reader: FrameReader | None) -> None:
        if payload is not None:
            time.sleep(self._delay + (len(header) + len(payload)) / self._rate)
        self._inner._transfer(header, payload, reader)

    def _send_abort(self, message: str) -> None:
        self._inner._send_abort(message)
