"""The store: kits on disk, each usable once, whatever happens to the process or the machine.

    DIR/incoming/<id>   being written
    DIR/ready/<id>      complete, checked, unused
    DIR/taken/<id>      taken out; never read again after a restart

`take` moves a kit from ready to taken, makes that durable (fsync of both folders), opens and unlinks it, makes that
durable, and only then hands out its bytes. A crash before the first fsync leaves the kit unused, because nothing of
it was read; a crash after it leaves at most a file in taken, which opening the store removes.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autorep.errors import MaterialError
from autorep.mpc.kit import DIGEST_BYTES, Header, read_header, verify

_ID = re.compile(r"[0-9a-f]{32}")


class Store:
    """Single-use kits of one party for one program."""

    def __init__(self, folder: str | Path, program_hash: bytes) -> None:
        self.folder, self._program_hash = Path(folder), program_hash
        self._ready, self._taken, self._incoming = (self.folder / name for name in ("ready", "taken", "incoming"))
        for sub in (self._ready, self._taken, self._incoming):
            sub.mkdir(parents=True, exist_ok=True, mode=0o700)
        for leftover in (*self._taken.iterdir(), *self._incoming.iterdir()):
            leftover.unlink()
        _sync_folder(self._taken)

    def __len__(self) -> int:
        return sum(1 for _ in self._ready.iterdir())

    def ids(self) -> list[bytes]:
        """Ids of the unused kits, oldest first."""
        entries = []
        for path in self._ready.iterdir():
            try:
                entries.append((path.stat().st_mtime_ns, path.name))
            except FileNotFoundError:  # taken meanwhile
                continue
        return [bytes.fromhex(name) for _, name in sorted(entries) if _ID.fullmatch(name)]

    def put(self, kit_id: bytes, data: bytes | memoryview) -> None:
        """Store a complete kit durably."""
        with self.incoming(kit_id) as sink:
            sink.write(data)

    @contextmanager
    def incoming(self, kit_id: bytes) -> Iterator[BinaryIO]:
        """A file to write a kit to; on leaving it is checked, made durable and becomes ready.

        A disk that is full, a broken transfer or a bad kit leave nothing behind.
        """
        path = self._incoming / kit_id.hex()
        try:
            with open(path, "xb", opener=_private) as sink:
                yield sink
                sink.flush()
                os.fsync(sink.fileno())
            self._check(path, kit_id)
            os.link(path, self._ready / path.name)  # refuses to overwrite
        except FileExistsError:
            raise MaterialError(f"store {self.folder}: kit {kit_id.hex()} is here already") from None
        except OSError as error:
            raise MaterialError(
                f"store {self.folder}: cannot write kit {kit_id.hex()}: {error.strerror}; free some space"
            ) from error
        finally:
            path.unlink(missing_ok=True)
        _sync_folder(self._ready)

    def _check(self, path: Path, kit_id: bytes) -> None:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size <= DIGEST_BYTES:
                raise MaterialError(f"kit {kit_id.hex()}: the file is empty; transfer it again")
            header = verify(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        self._check_header(header, kit_id)

    def _check_header(self, header: Header, kit_id: bytes) -> None:
        if header.kit_id != kit_id:
            raise MaterialError(f"kit {kit_id.hex()}: its header names {header.kit_id.hex()}")
        if header.program_hash != self._program_hash:
            raise MaterialError(f"kit {kit_id.hex()}: made for another program than this store's")

    def take(self, kit_id: bytes) -> memoryview:
        """Take a kit out for good and return its bytes (a map of the unlinked file, not a copy)."""
        source, target = self._ready / kit_id.hex(), self._taken / kit_id.hex()
        try:
            os.rename(source, target)
        except FileNotFoundError:
            raise MaterialError(
                f"store {self.folder}: no unused kit {kit_id.hex()} ({len(self)} others left)"
            ) from None
        _sync_folder(self._ready)
        _sync_folder(self._taken)
        with open(target, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        target.unlink()
        _sync_folder(self._taken)
        self._check_header(read_header(data), kit_id)
        return data

    def discard(self, kit_id: bytes) -> None:
        """Delete an unused kit, for example one the other party does not have."""
        (self._ready / kit_id.hex()).unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
