"""The record: which kits this party has used, and the keys of those it has not. It lies outside the store.

    RECORD/used       an append-only list of the ids that were used, one line each
    RECORD/keys/<id>  the key under which the unused kit <id> lies encrypted in the store

`spend` is the moment of use: it appends the id, destroys the key (overwritten, then unlinked), and makes both durable
before it hands the key out; `use` does so for a kit that never lay on the disk and has no key. So a kit that comes back
into the store, from a backup or from a second copy of what `autorep prepare` wrote, is refused by its id; and a copy of
the store alone is noise, because its keys are not in it.

A record begins at a moment, its epoch: kits made before are refused when they are moved in from a folder, since
nothing says whether an earlier record, now lost, had them as used.

An id is 128 bits, and the dealer counts in them (`dealer.py`), so used ids are intervals: a line is `first` or
`first count`, in hex. Opening a record rewrites a list that has grown longer than its intervals.
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from autorep import private
from autorep.errors import MaterialError, UsedError

_TITLE = "autorep record 1"
_LONG = 4096  # lines from which on it pays to rewrite the list


class Intervals:
    """A set of integers that come mostly in a row."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive

    def __contains__(self, number: int) -> bool:
        place = bisect.bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._ends[place]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every run as (first, count)."""
        return ((start, end - start) for start, end in zip(self._starts, self._ends))

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, first: int, count: int = 1) -> None:
        """Join first … first + count - 1 to the set."""
        low = bisect.bisect_left(self._ends, first)  # the first interval that touches or follows
        high = bisect.bisect_right(self._starts, first + count)
        if low < high:
            first, end = min(first, self._starts[low]), max(first + count, self._ends[high - 1])
        else:
            end = first + count
        self._starts[low:high], self._ends[low:high] = [first], [end]


class Record:
    """The record of one party for one program; one process at a time holds it."""

    def __init__(self, folder: Path, epoch: int, used: Intervals, file: int) -> None:
        self.folder, self.epoch = folder, epoch
        self._keys, self._used, self._file = folder / "keys", used, file
        self._lock = threading.Lock()

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / "used").exists()

    @classmethod
    def begin(cls, folder: Path, program_hash: bytes, epoch: int | None = None) -> Record:
        """A new record, of a server that has used nothing yet; its epoch is now unless given."""
        if cls.exists(folder):
            raise MaterialError(f"record {folder}: there is one already")
        private.make_folder(folder / "keys")
        private.write_text(folder / "used", _title(program_hash, int(time.time()) if epoch is None else epoch))
        return cls.open(folder, program_hash)

    @classmethod
    def open(cls, folder: Path, program_hash: bytes) -> Record:
        """Read a record and hold it until `close`."""
        path = folder / "used"
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            raise MaterialError(f"record {folder}: there is none") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise MaterialError(f"record {folder}: another process uses it; stop that server first") from None
        try:
            epoch, used, lines = _read(path, program_hash)
        except MaterialError:
            os.close(file)
            raise
        if lines > max(_LONG, 2 * len(used)):
            private.write_text(path, _title(program_hash, epoch) + "".join(_line(*entry) for entry in used))
            os.close(file)
            return cls.open(folder, program_hash)
        os.ftruncate(file, path.read_bytes().rfind(b"\n") + 1)  # a line that a crash cut short was never acted on
        record = cls(folder, epoch, used, file)
        for kit_id in filter(record.used, record.unused()):  # a crash came between list and key
            record.forget(kit_id)
        return record

    def close(self) -> None:
        """Let another process have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def used(self, kit_id: bytes) -> bool:
        return int.from_bytes(kit_id, "big") in self._used

    def unused(self) -> set[bytes]:
        """The kits whose keys are here."""
        return {bytes.fromhex(path.name) for path in self._keys.iterdir() if len(path.name) == 32}

    def keep(self, kit_id: bytes, key: bytes) -> None:
        """Keep the key of a new kit durably; refuses one that was used before or is here already."""
        self.refuse_used(kit_id)
        path = self._keys / kit_id.hex()
        if path.exists():
            raise MaterialError(f"kit {kit_id.hex()} is here already")
        private.write(path, key)

    def spend(self, kit_id: bytes) -> bytes:
        """The key of an unused kit, after its use is on record and the key itself destroyed, both durably."""
        self.refuse_used(kit_id)
        path = self._keys / kit_id.hex()
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            raise UsedError(
                f"kit {kit_id.hex()}: no key for it is on record; it came back with a backup or a copy"
            ) from None
        self.use(kit_id)
        private.shred(path)
        return key

    def use(self, kit_id: bytes) -> None:
        """Put the use of a kit on record, durably; once only."""
        number = int.from_bytes(kit_id, "big")
        with self._lock:
            self.refuse_used(kit_id)
            self._append(_line(number, 1).encode())
            self._used.add(number)

    def _append(self, line: bytes) -> None:
        """One line, durably and as a whole, or an OSError and no trace of it."""
        end = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise

    def forget(self, kit_id: bytes) -> None:
        """Destroy the key of a kit that will not be used."""
        private.shred(self._keys / kit_id.hex())

    def refuse_used(self, kit_id: bytes) -> None:
        """Raise UsedError for a kit that is on the list."""
        if self.used(kit_id):
            raise UsedError(
                f"kit {kit_id.hex()} was used before ({self.folder}/used says so); a second use would reveal what it "
                "hid. Delete the copy it came from, and never back up or copy a store"
            )


def _title(program_hash: bytes, epoch: int) -> str:
    return f"{_TITLE} program {program_hash.hex()} epoch {epoch}\n"


def _line(first: int, count: int) -> str:
    return f"{first:032x}\n" if count == 1 else f"{first:032x} {count:x}\n"


def _read(path: Path, program_hash: bytes) -> tuple[int, Intervals, int]:
    """Epoch, used ids and number of lines; a last line without its end is left out."""
    title, *lines = path.read_bytes().decode("ascii", "replace").split("\n")[:-1] or [""]
    expected, _, epoch = title.rpartition(" ")
    if expected + " " != _title(program_hash, 0)[:-2] or not epoch.isdigit():
        raise MaterialError(f"{path}: not the record of this program; move it away only if its store is deleted too")
    used = Intervals()
    for number, line in enumerate(lines, 2):
        try:
            first, _, count = line.partition(" ")
            used.add(int(first, 16), int(count or "1", 16))
        except ValueError:
            raise MaterialError(
                f"{path}: line {number} is damaged, so what was used is not known; delete this record and its store, "
                "and begin anew with fresh material"
            ) from None
    return int(epoch), used, len(lines)
