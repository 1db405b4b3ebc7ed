"""A kit: the correlated randomness of one query for one party, as bytes.

    header (160 bytes)   magic, version, party, comparison, batch, kit id, program hash, blinding id, seed, body length,
                         layout
    body                 the sections of `inventory.program_items` that this party receives, in that order, packed
    digest (32 bytes)    SHA-256 of header and body

The header binds a kit to one program, to one blinding of its weights, and by its layout to releases that make and read
the same contents in the same formats (`formats.layout`). The seed inside is secret.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import BinaryIO

from autorep.errors import MaterialError

MAGIC = b"ARPB"
VERSION = 2
_HEADER = struct.Struct("<4sHBBI16s32s16s32sQ8s36x")
HEADER_BYTES = _HEADER.size
DIGEST_BYTES = 32
KIT_ID_BYTES = 16
_COMPARISON_CODES = {"dcf": 0, "bits": 1}


@dataclass(frozen=True)
class Header:
    """Who may use this kit for what."""

    party: int
    comparison: str
    batch: int
    kit_id: bytes
    program_hash: bytes
    blinding_id: bytes
    seed: bytes
    body_bytes: int
    layout: bytes

    def __repr__(self) -> str:  # the seed must not reach a log
        return f"Header(party={self.party}, batch={self.batch}, kit_id={self.kit_id.hex()})"

    def encode(self) -> bytes:
        return _HEADER.pack(
            MAGIC, VERSION, self.party, _COMPARISON_CODES[self.comparison], self.batch,
            self.kit_id, self.program_hash, self.blinding_id, self.seed, self.body_bytes, self.layout,
        )  # fmt: skip

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + self.body_bytes + DIGEST_BYTES


def read_header(data: bytes | memoryview) -> Header:
    """Parse and check the fixed part; the length must match exactly."""
    if len(data) < HEADER_BYTES:
        raise MaterialError(f"kit: {len(data)} bytes, shorter than its {HEADER_BYTES}-byte header; prepare it anew")
    magic, version, party, code, batch, kit_id, *binding = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or party > 1 or code >= len(_COMPARISON_CODES):
        raise MaterialError(f"kit: not a version-{VERSION} kit; prepare it anew with this release")
    header = Header(party, list(_COMPARISON_CODES)[code], batch, kit_id, *binding)
    if len(data) != header.total_bytes:
        raise MaterialError(
            f"kit {kit_id.hex()}: {len(data)} bytes found, {header.total_bytes} expected; it was cut short"
        )
    return header


def verify(data: bytes | memoryview) -> Header:
    """Check length and digest of a whole kit."""
    header = read_header(data)
    view = memoryview(data)
    if hashlib.sha256(view[:-DIGEST_BYTES]).digest() != view[-DIGEST_BYTES:]:
        raise MaterialError(f"kit {header.kit_id.hex()}: its digest does not match; it was altered or damaged")
    return header


class KitWriter:
    """Writes header, sections and digest to a binary file as the dealer produces them."""

    def __init__(self, sink: BinaryIO, header: Header) -> None:
        self._sink, self._left = sink, header.body_bytes
        self._digest = hashlib.sha256()
        self._put(header.encode())

    def section(self, data: bytes | memoryview) -> None:
        self._left -= memoryview(data).nbytes
        self._put(data)

    def finish(self) -> None:
        """Append the digest; raises if the sections do not add up to the announced length."""
        if self._left:
            raise MaterialError(f"kit writer: {self._left} bytes of the inventory were not written")
        self._sink.write(self._digest.digest())

    def _put(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._sink.write(data)
