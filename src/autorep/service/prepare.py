"""Material made ahead: written by `prepare` on the dealer's machine, moved into a server's store by `move_in`.

OUT/party0/<program>/blinding.json  this party's seed of the weights' blinding
OUT/party0/<program>/kits/<id>      kits; also OUT/party1, each for its own server only
"""

from __future__ import annotations

import mmap
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tqdm import tqdm

from autorep import private
from autorep.errors import MaterialError, UsedError
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.dealer import Dealer
from autorep.mpc.kit import Header, read_header
from autorep.mpc.record import Record
from autorep.mpc.store import Store, record_folder
from autorep.program.files import program_hash
from autorep.program.ir import Program
from autorep.service.blinding import Blinding, read_blinding, write_blinding


def prepare(program: Program, out: Path, count: int, comparison: str = "dcf") -> tuple[int, int]:
    """Deal `count` inferences to OUT/party0 and OUT/party1; returns the bytes written for each."""
    dealer = Dealer(program, comparison=cast(ComparisonName, comparison))
    folders = [out / f"party{party}" / program_hash(program)[:16] for party in (0, 1)]
    for folder, seed in zip(folders, dealer.blinding.seeds):
        for stale in (folder / "kits").glob("*"):  # of an earlier blinding, worthless beside the new one
            stale.unlink()
        write_blinding(folder, Blinding(dealer.blinding.id.hex(), seed))
    for _ in tqdm(range(count), desc="preparing", unit="inference", leave=False):
        with _draft(folders[0]) as sink0, _draft(folders[1]) as sink1:
            kit_id = dealer.deal_to((sink0, sink1))
            for folder, sink in zip(folders, (sink0, sink1)):
                sink.flush()
                os.fsync(sink.fileno())
                os.rename(sink.name, folder / "kits" / kit_id.hex())
    size0, size1 = dealer.kit_bytes()
    return count * size0, count * size1


def _draft(folder: Path) -> BinaryIO:
    """A file for a kit whose id is not known yet; beside the kits, not among them."""
    private.make_folder(folder / "kits")
    return open(folder / "kit.new", "wb", opener=private.opener)


@dataclass(frozen=True)
class Moved:
    """What became of one program's material: kits in the store now, and kits refused because they were used before."""

    program: str
    kits: int
    refused: int


def move_in(material: Path, store: Path, begin: bool = False) -> list[Moved]:
    """Move every program's material into a server's store; the folder it came from is empty afterwards.

    `begin` allows to begin the record of a server that has used nothing yet.
    """
    folders = sorted(path.parent for path in material.glob("*/blinding.json"))
    if not folders:
        raise MaterialError(
            f"{material}: no prepared material here; name OUT/party0 or OUT/party1 of `autorep prepare`"
        )
    return [_move_program(folder, store / folder.name, begin) for folder in folders]


def _move_program(source: Path, target: Path, begin: bool) -> Moved:
    paths = sorted((source / "kits").glob("*"))
    headers = [_header(path) for path in paths]
    if not headers:
        raise MaterialError(f"{source}: no kits are left here; they were moved before. Prepare more")
    program, oldest, record = headers[0].program_hash, min(header.made for header in headers), record_folder(target)
    if not Record.exists(record):
        if not begin:
            raise MaterialError(
                f"{record}: no record of used material is here. If this server has never used any, say --begin; "
                "if the record was lost, delete this material and prepare it anew"
            )
        Record.begin(record, program, oldest).close()
    store = Store(target, program)
    try:
        if oldest < store.epoch:
            raise MaterialError(
                f"{source}: made before this server's record of used material began, so it may have been used; "
                "delete this material and prepare it anew"
            )
        _adopt_blinding(source, store)
        known = set(store.ids())  # of an earlier move that was cut off in the middle
        refused = sum(not _move_kit(path, store, known) for path in paths)
    finally:
        store.close()
    private.shred(source / "blinding.json")
    return Moved(program.hex(), len(paths) - refused, refused)


def _adopt_blinding(source: Path, store: Store) -> None:
    """The material's blinding becomes the store's; kits for another are worthless beside it."""
    blinding, present = read_blinding(source), read_blinding(store.folder)
    assert blinding is not None
    if present is None or present.id != blinding.id:
        for kit_id in store.ids():
            store.discard(kit_id)
        write_blinding(store.folder, blinding)


def _move_kit(path: Path, store: Store, known: set[bytes]) -> bool:
    """Into the store, or nowhere if it was used before; in both cases nothing of it is left here."""
    kit_id, moved = _header(path).kit_id, True
    try:
        if kit_id not in known:
            with open(path, "rb") as source, store.incoming(kit_id, path.stat().st_size) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    except UsedError:
        moved = False
    private.shred(path)
    return moved


def _header(path: Path) -> Header:
    if not path.stat().st_size:
        raise MaterialError(f"{path}: the file is empty; transfer it again")
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        return read_header(view)
