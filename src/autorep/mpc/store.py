"""The store: kits, each usable once, whatever happens to the process, the machine or its backups.

    DIR/incoming/<id>   being written
    DIR/ready/<id>      complete, checked, unused; encrypted under a key that lies in the record
    DIR.record/         the record (`record.py`): ids that were used, keys of those that were not

(DIR is store/<program>, its record store.record/<program>: beside the store, not in it.)

`take` spends the kit in the record first: its id is on the list of used ones and its key is gone from the disk,
durably, before a byte of it is decrypted. A crash before that leaves the kit unused, a crash after it loses the kit.
Kits without a key are left over from such a crash, or came back with a backup: opening the store deletes them.

A server that has a dealer may hold the newest kits in memory (`hold`), from where they are used first: while kits come
as fast as they are used, none of them is written to the disk, encrypted and read again. One that must make room for a
newer one of the same batch size moves to the disk, unless it is about to be taken (`promise`), and so do all of them
when the store is closed. A crash loses those in memory, unused.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autorep import private
from autorep.errors import MaterialError
from autorep.mpc.kit import Header, KitBuffer, KitCheck, batch_of, read_header
from autorep.mpc.record import Record
from autorep.mpc.seal import Sealer, unseal

_ID = re.compile(r"[0-9a-f]{32}")
HELD_BYTES = 1 << 28  # of kits of one batch size in memory


def record_folder(store_folder: Path) -> Path:
    """Where the record of a program's store lies: store/x has store.record/x."""
    store = store_folder.absolute().parent
    return store.with_name(store.name + ".record") / store_folder.name


class Incoming:
    """A kit on its way to the disk: each piece is checked and encrypted as it comes."""

    def __init__(self, file: BinaryIO, kit_id: bytes) -> None:
        self._check, self._sealer = KitCheck(), Sealer(file, kit_id)

    def write(self, piece: bytes | memoryview) -> None:
        self._check.update(piece)
        self._sealer.write(piece)

    def finish(self) -> tuple[Header, bytes]:
        """The header of the whole, unaltered kit, and the key it lies under."""
        return self._check.finish(), self._sealer.finish()


class Collected:
    """A kit on its way to memory: each piece is checked as it comes, and kept."""

    def __init__(self, size: int) -> None:
        self._check, self._kit = KitCheck(), KitBuffer(size)

    def write(self, piece: bytes | memoryview) -> None:
        self._check.update(piece)
        self._kit.write(piece)

    def finish(self) -> tuple[Header, memoryview]:
        """The header of the whole, unaltered kit, and the kit."""
        return self._check.finish(), self._kit.read().toreadonly()


class Store:
    """Single-use kits of one party for one program; one process at a time holds it.

    Args:
        hold: queries whose kits may be in memory, the newest ones; as many for each batch size.

    Attributes:
        turned_away: kits found here that the record does not know as unused; they were deleted.
    """

    def __init__(self, folder: str | Path, program_hash: bytes, hold: int = 0) -> None:
        self.folder, self._program_hash, self._hold = Path(folder), program_hash, hold
        self._held: dict[bytes, memoryview] = {}  # oldest first
        self._promised: set[bytes] = set()
        self._lock = threading.Lock()  # where a kit is: in memory, on disk, or gone
        self._ready, self._incoming = self.folder / "ready", self.folder / "incoming"
        self._make_folders()
        self._record = self._open_record()
        for leftover in self._incoming.iterdir():
            leftover.unlink()
        found, unused = {path.name for path in self._ready.iterdir()}, {i.hex() for i in self._record.unused()}
        for name in found - unused:
            (self._ready / name).unlink()
        for name in unused - found:
            self._record.forget(bytes.fromhex(name))
        self.turned_away = len(found - unused)

    def _make_folders(self) -> None:
        for sub in (self._ready, self._incoming):
            private.make_folder(sub)

    def _mend(self) -> None:
        """A store that was deleted whole, in use, goes on empty: what was used is on record elsewhere."""
        if not self.folder.exists():
            self._make_folders()

    def _open_record(self) -> Record:
        folder = record_folder(self.folder)
        if Record.exists(folder):
            return Record.open(folder, self._program_hash)
        if any(self._ready.iterdir()):
            raise MaterialError(
                f"store {self.folder}: it holds kits, but the record of what was used ({folder}) is missing, so they "
                "may have been used before. Delete this store; fresh material comes from the dealer or `autorep import`"
            )
        return Record.begin(folder, self._program_hash)

    def close(self) -> None:
        """Let another process have it; what is in memory moves to the disk, if that takes it."""
        for kit_id in list(self._held):
            with contextlib.suppress(MaterialError):
                self._move_to_disk(kit_id)
        self._record.close()

    def __len__(self) -> int:
        self._mend()
        return len(self._held) + sum(1 for _ in self._ready.iterdir())

    @property
    def epoch(self) -> int:
        """When the record began (seconds since 1970)."""
        return self._record.epoch

    def ids(self) -> list[bytes]:
        """Ids of the unused kits, oldest first."""
        entries = []
        self._mend()
        for path in self._ready.iterdir():
            try:
                entries.append((path.stat().st_mtime_ns, path.name))
            except FileNotFoundError:  # taken meanwhile
                continue
        on_disk = [bytes.fromhex(name) for _, name in sorted(entries) if _ID.fullmatch(name)]
        return list(dict.fromkeys([*on_disk, *self._held]))

    def put(self, kit_id: bytes, data: bytes | memoryview) -> None:
        """Store a complete kit."""
        with self.incoming(kit_id, len(data)) as sink:
            sink.write(data)

    @contextmanager
    def incoming(self, kit_id: bytes, size: int) -> Iterator[Incoming | Collected]:
        """Something to write a kit to, in pieces; on leaving it is checked and becomes ready, on disk durably.

        A kit that was used before raises UsedError at once. A disk that is full, a broken transfer or a bad kit leave
        nothing behind.
        """
        self._record.refuse_used(kit_id)
        if not self._make_room(batch_of(kit_id), size):
            with self._to_disk(kit_id) as sink:
                yield sink
            return
        collected = Collected(size)
        yield collected
        header, data = collected.finish()
        self._check_header(header, kit_id)
        with self._lock:
            if kit_id in self._held or (self._ready / kit_id.hex()).exists():
                raise MaterialError(f"kit {kit_id.hex()} is here already")
            self._held[kit_id] = data

    def _make_room(self, batch: int, size: int) -> bool:
        """Whether a new kit may stay in memory; the oldest ones of its batch size there leave for the disk."""
        if batch > self._hold or size > HELD_BYTES:
            return False
        while (oldest := self._oldest_beyond(batch, size)) is not None:
            self._move_to_disk(oldest)
        return True

    def _oldest_beyond(self, batch: int, size: int) -> bytes | None:
        """The kit in memory that must leave before one of this batch size and so many bytes comes, if any."""
        with self._lock:
            alike = {i: len(kit) for i, kit in self._held.items() if batch_of(i) == batch and i not in self._promised}
        full = batch * (len(alike) + 1) > self._hold or sum(alike.values()) + size > HELD_BYTES
        return next(iter(alike)) if alike and full else None

    def _move_to_disk(self, kit_id: bytes) -> None:
        """Write out a kit that is in memory, unless somebody takes it meanwhile."""
        if (data := self._held.get(kit_id)) is not None:
            with self._to_disk(kit_id, held=True) as sink:
                sink.write(data)

    @contextmanager
    def _to_disk(self, kit_id: bytes, held: bool = False) -> Iterator[Incoming]:
        path = self._incoming / kit_id.hex()
        self._mend()
        try:
            with open(path, "wb", opener=private.opener) as file:
                sink = Incoming(file, kit_id)
                yield sink
                header, key = sink.finish()
            self._check_header(header, kit_id)
            with self._lock:
                if held and kit_id not in self._held:
                    return
                self._record.keep(kit_id, key)
                os.rename(path, self._ready / path.name)
                self._held.pop(kit_id, None)
        except OSError as error:
            self._record.forget(kit_id)
            raise MaterialError(
                f"store {self.folder}: cannot write kit {kit_id.hex()}: {error.strerror}; free some space"
            ) from error
        finally:
            path.unlink(missing_ok=True)
        private.sync_folder(self._ready)

    def _check_header(self, header: Header, kit_id: bytes) -> None:
        if header.kit_id != kit_id:
            raise MaterialError(f"kit {kit_id.hex()}: its header names {header.kit_id.hex()}")
        if header.program_hash != self._program_hash:
            raise MaterialError(f"kit {kit_id.hex()}: made for another program than this store's")
        if min(header.batch, 256) != batch_of(kit_id):
            raise MaterialError(f"kit {kit_id.hex()}: its id is one of another batch size than {header.batch}")

    def promise(self, kit_id: bytes) -> None:
        """A kit is about to be taken: if it is in memory, it need not make room for others."""
        with self._lock:
            self._promised.add(kit_id)

    def take(self, kit_id: bytes) -> memoryview:
        """Take a kit out for good and return its bytes; raises MaterialError if they are not those that were put."""
        with self._lock:
            held = self._held.pop(kit_id, None)
            self._promised.discard(kit_id)
        if held is not None:
            self._record.use(kit_id)
            return held
        path = self._ready / kit_id.hex()
        if not path.exists():
            raise MaterialError(f"store {self.folder}: no unused kit {kit_id.hex()} ({len(self)} others left)")
        try:
            data = unseal(path, self._record.spend(kit_id), kit_id)
        except OSError as error:
            raise MaterialError(f"store {self.folder}: cannot read kit {kit_id.hex()}: {error.strerror}") from error
        finally:
            path.unlink(missing_ok=True)
        self._check_header(read_header(data), kit_id)
        return data

    def discard(self, kit_id: bytes) -> None:
        """Delete an unused kit, for example one the other party does not have."""
        with self._lock:
            self._promised.discard(kit_id)
            if self._held.pop(kit_id, None) is not None:
                return
        (self._ready / kit_id.hex()).unlink(missing_ok=True)
        self._record.forget(kit_id)
