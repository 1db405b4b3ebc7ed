"""A kit: the correlated randomness of one query for one party, as bytes.

    header (176 bytes)   magic, version, party, comparison, batch, kit id, program hash, blinding id, seed, body length,
                         layout, time made
    body                 the sections of `inventory.program_items` that this party receives, in that order, packed
    tag (16 bytes)       AES-128-GMAC of header and body

The header binds a kit to one program, to one blinding of its weights, and by its layout to releases that make and read
the same contents in the same formats (`formats.layout`). The seed inside is secret.

The tag is keyed by the kit's own seed, so it is a code of its maker's that nobody without the kit can forge: it
notices damage with certainty 1 - 2^-100, and alterations by whoever cannot read the kit. (Links are authenticated by
TLS, the store by `seal.py`.)
"""

from __future__ import annotations

import hmac
import struct
import time
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from autorep.errors import MaterialError
from autorep.mpc.blocks import block
from autorep.mpc.prg import stream_key

MAGIC = b"ARPB"
VERSION = 3
_HEADER = struct.Struct("<4sHBBI16s32s16s32sQ8sQ44x")
HEADER_BYTES = _HEADER.size
TAG_BYTES = 16
_TAG_CHUNK = 1 << 30  # OpenSSL counts the bytes of one call in an int
KIT_ID_BYTES = 16
_COMPARISON_CODES = {"dcf": 0, "bits": 1, "short": 2}
_BATCH_BYTE = 8  # of an id


def kit_id(series: bytes, batch: int, number: bytes) -> bytes:
    """An id of a kit for `batch` images: 8 bytes of its maker's, the batch size, 7 bytes that tell kits apart."""
    return series + bytes([min(batch, 256) - 1]) + number


def batch_of(name: bytes) -> int:
    """The images that the kit of this id is for; 256 stands for all that is larger."""
    return name[_BATCH_BYTE] + 1


@dataclass(frozen=True)
class Header:
    """Who may use this kit for what; `made` is the dealer's clock (seconds since 1970)."""

    party: int
    comparison: str
    batch: int
    kit_id: bytes
    program_hash: bytes
    blinding_id: bytes
    seed: bytes
    body_bytes: int
    layout: bytes
    made: int = field(default_factory=lambda: int(time.time()))

    def __repr__(self) -> str:  # the seed must not reach a log
        return f"Header(party={self.party}, batch={self.batch}, kit_id={self.kit_id.hex()})"

    def encode(self) -> bytes:
        return _HEADER.pack(
            MAGIC, VERSION, self.party, _COMPARISON_CODES[self.comparison], self.batch,
            self.kit_id, self.program_hash, self.blinding_id, self.seed, self.body_bytes, self.layout, self.made,
        )  # fmt: skip

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + self.body_bytes + TAG_BYTES


def read_header(data: bytes | memoryview) -> Header:
    """Parse and check the fixed part; the length must match exactly."""
    header = _parse(data)
    if len(data) != header.total_bytes:
        raise MaterialError(
            f"kit {header.kit_id.hex()}: {len(data)} bytes found, {header.total_bytes} expected; it was cut short"
        )
    return header


def _parse(data: bytes | bytearray | memoryview) -> Header:
    if len(data) < HEADER_BYTES:
        raise MaterialError(f"kit: {len(data)} bytes, shorter than its {HEADER_BYTES}-byte header; prepare it anew")
    magic, version, party, code, batch, kit_id, *binding = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or party > 1 or code >= len(_COMPARISON_CODES):
        raise MaterialError(f"kit: not a version-{VERSION} kit; prepare it anew with this release")
    return Header(party, list(_COMPARISON_CODES)[code], batch, kit_id, *binding)


def verify(data: bytes | memoryview) -> Header:
    """Check length and tag of a whole kit."""
    check = KitCheck()
    check.update(data)
    return check.finish()


class KitCheck:
    """Checks length and tag of a kit that arrives in pieces."""

    def __init__(self) -> None:
        self._start, self._end = bytearray(), bytearray()
        self._header: Header | None = None
        self._left = 0

    def update(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        if self._header is None:
            missing = HEADER_BYTES - len(self._start)
            self._start += view[:missing]
            view = view[missing:]
            if len(self._start) < HEADER_BYTES:
                return
            self._header = _parse(self._start)
            self._tag, self._left = _Tag(self._header.seed), self._header.body_bytes
            self._tag.update(bytes(self._start))
        self._tag.update(view[: self._left])
        self._end += view[self._left :][: TAG_BYTES + 1 - len(self._end)]
        self._left = max(0, self._left - len(view))

    def finish(self) -> Header:
        """The header, if all of the kit came and nothing of it was altered."""
        if self._header is None:
            raise MaterialError(f"kit: {len(self._start)} bytes, shorter than its header; prepare it anew")
        name = self._header.kit_id.hex()
        if self._left or len(self._end) != TAG_BYTES:
            raise MaterialError(f"kit {name}: it was cut short, or is longer than its header says; transfer it again")
        if not hmac.compare_digest(self._tag.finish(), self._end):
            raise MaterialError(f"kit {name}: its tag does not match; it was altered or damaged")
        return self._header


class _Tag:
    """AES-128-GMAC under a key that only holders of the kit's seed know; each key authenticates one kit."""

    def __init__(self, seed: bytes) -> None:
        key = stream_key(seed, "kit/tag")
        self._state = Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        if not view.nbytes:  # an empty view has no bytes to cast
            return
        view = view.cast("B")
        for start in range(0, len(view), _TAG_CHUNK):
            self._state.authenticate_additional_data(view[start : start + _TAG_CHUNK])

    def finish(self) -> bytes:
        self._state.finalize()
        return self._state.tag


class Sink(Protocol):
    """Where a kit is written to."""

    def write(self, piece: bytes | memoryview, /) -> object: ...


class KitBuffer:
    """A kit in memory, at its final size from the start: written piece by piece, then read without a copy."""

    def __init__(self, size: int) -> None:
        self._data = block(size)
        self._written = self._read = 0

    def write(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        if view.nbytes:  # an empty view has no bytes to cast
            self._data[self._written : self._written + view.nbytes] = view.cast("B")
            self._written += view.nbytes

    def read(self, size: int | None = None) -> memoryview:
        """The next `size` bytes of what was written, or all that is left."""
        end = self._written if size is None else min(self._read + size, self._written)
        piece = self._data[self._read : end]
        self._read = end
        return piece

    def seek(self, place: int) -> None:
        self._read = place


class KitWriter:
    """Writes header, sections and tag to a binary file as the dealer produces them."""

    def __init__(self, sink: Sink, header: Header) -> None:
        self._sink, self._left = sink, header.body_bytes
        self._tag = _Tag(header.seed)
        self._put(header.encode())

    def section(self, data: bytes | memoryview) -> None:
        self._left -= memoryview(data).nbytes
        self._put(data)

    def finish(self) -> None:
        """Append the tag; raises if the sections do not add up to the announced length."""
        if self._left:
            raise MaterialError(f"kit writer: {self._left} bytes of the inventory were not written")
        self._sink.write(self._tag.finish())

    def _put(self, data: bytes | memoryview) -> None:
        self._tag.update(data)
        self._sink.write(data)
