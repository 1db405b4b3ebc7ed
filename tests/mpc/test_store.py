"""The single-use store, also when its process is killed at random points."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autorep.errors import MaterialError, UsedError
from autorep.mpc import kit as kit_module
from autorep.mpc.dealer import Dealer
from autorep.mpc.kit import verify
from autorep.mpc.seal import Sealer
from autorep.mpc.store import Store, record_folder
from tests.mpc.programs import Builder


@pytest.fixture(scope="module")
def dealer() -> Dealer:
    b = Builder(0, shape=(1, 4, 4))
    b.stem(2)
    b.head(2)
    return Dealer(b.program())


@pytest.fixture
def program_hash(dealer) -> bytes:
    return verify(dealer.deal().kits[0]).program_hash


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "store" / "program"


@pytest.fixture
def store(folder, program_hash) -> Iterator[Store]:
    opened = Store(folder, program_hash)
    yield opened
    opened.close()


def files_of(store: Store) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file()]


def test_a_kit_is_taken_once(store, dealer):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[1])
    assert store.ids() == [dealt.kit_id]
    assert bytes(store.take(dealt.kit_id)) == dealt.kits[1]
    assert store.ids() == []
    with pytest.raises(MaterialError, match="no unused kit"):
        store.take(dealt.kit_id)
    assert not files_of(store)


def test_put_refuses_the_same_kit_twice(store, dealer):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[0])
    with pytest.raises(MaterialError, match="already"):
        store.put(dealt.kit_id, dealt.kits[0])
    assert store.ids() == [dealt.kit_id]
    assert bytes(store.take(dealt.kit_id)) == dealt.kits[0]


def test_put_refuses_a_kit_that_was_used(store, dealer, folder, program_hash):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[1])
    store.take(dealt.kit_id)
    with pytest.raises(UsedError, match="was used before"):
        store.put(dealt.kit_id, dealt.kits[1])
    store.close()
    again = Store(folder, program_hash)  # and after a restart
    with pytest.raises(UsedError, match="was used before"):
        again.put(dealt.kit_id, dealt.kits[1])
    assert not files_of(again)
    again.close()


@pytest.mark.parametrize("running", [False, True])
def test_a_store_restored_from_a_backup_gives_out_nothing_twice(store, dealer, folder, program_hash, tmp_path, running):
    kits = [dealer.deal() for _ in range(4)]
    for dealt in kits:
        store.put(dealt.kit_id, dealt.kits[0])
    shutil.copytree(folder, tmp_path / "backup")
    taken = [dealt.kit_id for dealt in kits[:2]]
    for kit_id in taken:
        store.take(kit_id)
    if not running:
        store.close()
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup", folder)
        store = Store(folder, program_hash)
        assert store.turned_away == 2
    else:
        for kit_id in taken:
            shutil.copy(tmp_path / "backup" / "ready" / kit_id.hex(), folder / "ready")
    for kit_id in taken:
        with pytest.raises(MaterialError):
            store.take(kit_id)
    assert sorted(store.ids()) == sorted(dealt.kit_id for dealt in kits[2:])
    assert bytes(store.take(kits[2].kit_id)) == kits[2].kits[0]
    store.close()


def test_a_store_without_its_record_is_refused(store, dealer, folder, program_hash):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[0])
    store.close()
    shutil.rmtree(record_folder(folder))
    with pytest.raises(MaterialError, match="record of what was used .* is missing"):
        Store(folder, program_hash)


def test_a_copy_of_the_store_alone_is_noise(store, dealer, folder):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[1])
    stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    plain = dealt.kits[1]
    assert not any(plain[start : start + 16] in stored for start in range(0, len(plain) - 16, 16))
    (key,) = (record_folder(folder) / "keys").iterdir()
    assert key.read_bytes() not in stored


def test_the_key_of_a_used_kit_is_overwritten(store, dealer, folder):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[1])
    (path,) = (record_folder(folder) / "keys").iterdir()
    with open(path, "rb") as watched:  # the file itself, beyond its unlinking
        key = watched.read()
        store.take(dealt.kit_id)
        watched.seek(0)
        assert watched.read() == bytes(len(key)) != key
    assert not path.exists()


@pytest.mark.parametrize("bit", [0, 8 * 200 + 3, -1])
def test_a_flipped_bit_on_disk_is_noticed(store, dealer, folder, bit):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[1])
    path = folder / "ready" / dealt.kit_id.hex()
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    with pytest.raises(MaterialError, match="altered or damaged"):
        store.take(dealt.kit_id)
    assert len(store) == 0


@pytest.mark.parametrize("size", [0, 1, 16, 17, 175, -1])
def test_a_kit_cut_short_on_disk_is_noticed(store, dealer, folder, size):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[0])
    path = folder / "ready" / dealt.kit_id.hex()
    os.truncate(path, size % path.stat().st_size)
    with pytest.raises(MaterialError, match="altered or damaged"):
        store.take(dealt.kit_id)
    assert len(store) == 0


def test_two_kits_exchanged_on_disk_are_noticed(store, dealer, folder):
    first, second = dealer.deal(), dealer.deal()
    for dealt in (first, second):
        store.put(dealt.kit_id, dealt.kits[0])
    paths = [folder / "ready" / dealt.kit_id.hex() for dealt in (first, second)]
    one, two = (path.read_bytes() for path in paths)
    paths[0].write_bytes(two)
    paths[1].write_bytes(one)
    for dealt in (first, second):
        with pytest.raises(MaterialError, match="altered or damaged"):
            store.take(dealt.kit_id)


@pytest.mark.parametrize("damage", ["truncated", "altered", "tag", "other program", "other id", "empty"])
def test_damaged_kits_are_refused_and_leave_nothing(folder, dealer, program_hash, damage):
    dealt = dealer.deal()
    data, kit_id = bytearray(dealt.kits[1]), dealt.kit_id
    if damage == "truncated":
        del data[-5:]
    elif damage == "altered":
        data[300] ^= 1
    elif damage == "tag":
        data[-1] ^= 128
    elif damage == "other program":
        program_hash = bytes(32)
    elif damage == "other id":
        kit_id = bytes(16)
    else:
        data.clear()
    store = Store(folder, program_hash)
    with pytest.raises(MaterialError):
        store.put(kit_id, bytes(data))
    assert not files_of(store)
    assert not list((record_folder(folder) / "keys").iterdir())
    store.close()


@pytest.mark.parametrize("where", ["kit", "key"])
def test_a_full_disk_loses_nothing_else(store, dealer, monkeypatch, where):
    first, second = dealer.deal(), dealer.deal()
    store.put(first.kit_id, first.kits[0])

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("autorep.mpc.seal.Sealer.finish" if where == "kit" else "autorep.private.write", full)
        with pytest.raises(MaterialError, match="No space left"):
            store.put(second.kit_id, second.kits[0])
    assert store.ids() == [first.kit_id]
    store.put(second.kit_id, second.kits[0])  # once there is room again
    assert bytes(store.take(second.kit_id)) == second.kits[0]


def test_a_store_deleted_in_use_goes_on_empty_and_remembers(store, dealer, folder):
    used, lost, later = dealer.deal(), dealer.deal(), dealer.deal()
    for dealt in (used, lost):
        store.put(dealt.kit_id, dealt.kits[0])
    store.take(used.kit_id)
    shutil.rmtree(folder)
    with pytest.raises(MaterialError, match="no unused kit"):
        store.take(lost.kit_id)
    assert store.ids() == []
    store.put(later.kit_id, later.kits[0])
    with pytest.raises(UsedError):
        store.put(used.kit_id, used.kits[0])
    assert bytes(store.take(later.kit_id)) == later.kits[0]


def test_files_are_private(store, dealer, tmp_path):
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[0])
    for path in (*(tmp_path / "store").rglob("*"), *(tmp_path / "store.record").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_one_process_holds_a_store(store, folder, program_hash):
    with pytest.raises(MaterialError, match="another process"):
        Store(folder, program_hash)


# ---------------------------------------------------------------------- the newest kits, in memory


@pytest.fixture
def holding(folder, program_hash) -> Iterator[Store]:
    opened = Store(folder, program_hash, hold=2)
    yield opened
    opened.close()


def put_some(store, dealer, count, batch=1) -> list:
    kits = [dealer.deal(batch) for _ in range(count)]
    for dealt in kits:
        store.put(dealt.kit_id, dealt.kits[1])
    return kits


def test_the_newest_kits_never_touch_the_disk(holding, dealer):
    kits = put_some(holding, dealer, 2)
    assert not files_of(holding)
    for dealt in kits:
        assert bytes(holding.take(dealt.kit_id)) == dealt.kits[1]
        with pytest.raises(MaterialError, match="no unused kit"):
            holding.take(dealt.kit_id)
        with pytest.raises(UsedError, match="was used before"):
            holding.put(dealt.kit_id, dealt.kits[1])
    assert not files_of(holding)
    assert len(holding) == 0


def test_older_kits_make_room_and_all_survive_a_stop(holding, dealer, folder, program_hash):
    kits = put_some(holding, dealer, 5)
    assert [path.name for path in sorted(files_of(holding))] == [dealt.kit_id.hex() for dealt in kits[:3]]
    assert holding.ids() == [dealt.kit_id for dealt in kits]
    holding.take(kits[4].kit_id)
    holding.close()
    again = Store(folder, program_hash)
    assert sorted(again.ids()) == [dealt.kit_id for dealt in kits[:4]]
    assert [bytes(again.take(dealt.kit_id)) for dealt in kits[:4]] == [dealt.kits[1] for dealt in kits[:4]]
    with pytest.raises(UsedError, match="was used before"):
        again.put(kits[4].kit_id, kits[4].kits[1])
    again.close()


def test_kits_for_several_queries_have_memory_of_their_own(folder, program_hash, dealer):
    holding = Store(folder, program_hash, hold=5)
    single, together, larger = (put_some(holding, dealer, 6, batch) for batch in (1, 2, 6))
    left = {dealt.kit_id.hex() for dealt in (single[0], *together[:4], *larger)}
    assert {path.name for path in files_of(holding)} == left, "five queries of each size stay, and none of the largest"
    holding.close()


def test_kits_in_memory_are_few_where_they_are_large(holding, dealer, monkeypatch):
    monkeypatch.setattr("autorep.mpc.store.HELD_BYTES", len(dealer.deal().kits[1]))
    first, _, together = (*put_some(holding, dealer, 2), *put_some(holding, dealer, 1, batch=2))
    left = {dealt.kit_id.hex() for dealt in (first, together)}
    assert {path.name for path in files_of(holding)} == left, "one stays, and one is beyond all bytes"


def test_a_kit_that_is_about_to_be_taken_does_not_leave_for_the_disk(holding, dealer):
    first, second = put_some(holding, dealer, 2)
    holding.promise(first.kit_id)
    third, fourth = put_some(holding, dealer, 2)
    assert [path.name for path in files_of(holding)] == [second.kit_id.hex()], "and takes nobody's place"
    assert bytes(holding.take(first.kit_id)) == first.kits[1]
    assert holding.ids() == [second.kit_id, third.kit_id, fourth.kit_id]


def test_a_kit_taken_while_it_moves_to_the_disk_is_not_left_there(holding, dealer, monkeypatch):
    first, _ = put_some(holding, dealer, 2)
    finish = Sealer.finish

    def taken_meanwhile(sealer) -> bytes:
        assert bytes(holding.take(first.kit_id)) == first.kits[1]
        return finish(sealer)

    with monkeypatch.context() as patch:
        patch.setattr(Sealer, "finish", taken_meanwhile)
        third = dealer.deal()
        holding.put(third.kit_id, third.kits[1])
    assert not files_of(holding)
    assert first.kit_id not in holding.ids()
    assert not list((record_folder(holding.folder) / "keys").iterdir())


def test_a_full_disk_refuses_the_newcomer_and_keeps_the_others(holding, dealer, monkeypatch):
    kits = put_some(holding, dealer, 2)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Sealer, "finish", full)
        third = dealer.deal()
        with pytest.raises(MaterialError, match="No space left"):
            holding.put(third.kit_id, third.kits[1])
    assert holding.ids() == [dealt.kit_id for dealt in kits]
    assert bytes(holding.take(kits[0].kit_id)) == kits[0].kits[1]


def test_a_held_kit_is_discarded_and_a_damaged_one_not_taken_in(holding, dealer):
    (dealt,) = put_some(holding, dealer, 1)
    holding.discard(dealt.kit_id)
    assert len(holding) == 0
    with pytest.raises(MaterialError, match="tag does not match"):
        holding.put(dealt.kit_id, bytes(dealt.kits[1][:-1]) + b"x")
    holding.put(dealt.kit_id, dealt.kits[1])
    with pytest.raises(MaterialError, match="already"):
        holding.put(dealt.kit_id, dealt.kits[1])


WORKER = """
import sys
from autorep.mpc.store import Store
store = Store(sys.argv[1], bytes.fromhex(sys.argv[2]))
print("open", flush=True)
for kit_id in store.ids():
    data = store.take(kit_id)
    print(kit_id.hex(), data[160], flush=True)  # first use of the kit's content
"""


def test_killed_at_random_points_no_kit_is_used_twice(store, folder, dealer, program_hash):
    everything = set()
    for _ in range(40):
        dealt = dealer.deal()
        store.put(dealt.kit_id, dealt.kits[1])
        everything.add(dealt.kit_id.hex())
    store.close()
    random.seed(1)
    used: list[str] = []
    for kits in (0, 0, 1, 1, 2, 3):
        used += _run_worker_and_kill(folder, program_hash, kits, random.uniform(0, 0.004))
    reopened = Store(folder, program_hash)
    left = {kit_id.hex() for kit_id in reopened.ids()}
    keys = {path.name for path in (record_folder(folder) / "keys").iterdir()}
    reopened.close()
    assert len(used) == len(set(used)), "a kit was used twice"
    assert not left & set(used), "a used kit is still in the store"
    assert used, "the worker never got to use a kit"
    assert left | set(used) <= everything
    assert keys == left, "a key outlived its kit, or a kit its key"


def _run_worker_and_kill(folder: Path, program_hash: bytes, kits: int, delay: float) -> list[str]:
    """Let it use so many kits, and kill it somewhere in the middle of the next."""
    command = [sys.executable, "-c", WORKER, str(folder), program_hash.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        lines = [process.stdout.readline() for _ in range(kits)]
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.read().splitlines()
    return [line.split()[0] for line in lines if len(line.split()) == 2]


def test_a_tag_taken_in_pieces_is_the_same(dealer: Dealer, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL takes less than 2 GiB a call: larger kits go to it in pieces."""
    kit = dealer.deal().kits[1]
    monkeypatch.setattr(kit_module, "_TAG_CHUNK", 100)
    assert len(kit) > 300
    verify(kit)
