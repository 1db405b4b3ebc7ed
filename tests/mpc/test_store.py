"""The single-use store, also when its process is killed at random points."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autorep.errors import MaterialError
from autorep.mpc.dealer import Dealer
from autorep.mpc.kit import verify
from autorep.mpc.store import Store
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


def test_a_kit_is_taken_once(tmp_path, dealer, program_hash):
    store = Store(tmp_path, program_hash)
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[1])
    assert store.ids() == [dealt.kit_id]
    assert bytes(store.take(dealt.kit_id)) == dealt.kits[1]
    assert store.ids() == []
    with pytest.raises(MaterialError, match="no unused kit"):
        store.take(dealt.kit_id)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_put_refuses_the_same_kit_twice(tmp_path, dealer, program_hash):
    store = Store(tmp_path, program_hash)
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[0])
    with pytest.raises(MaterialError, match="already"):
        store.put(dealt.kit_id, dealt.kits[0])
    assert store.ids() == [dealt.kit_id]


@pytest.mark.parametrize("damage", ["truncated", "altered", "other program", "other id", "empty"])
def test_damaged_kits_are_refused_and_leave_nothing(tmp_path, dealer, program_hash, damage):
    dealt = dealer.deal()
    data, kit_id = bytearray(dealt.kits[1]), dealt.kit_id
    if damage == "truncated":
        del data[-5:]
    elif damage == "altered":
        data[300] ^= 1
    elif damage == "other program":
        program_hash = bytes(32)
    elif damage == "other id":
        kit_id = bytes(16)
    else:
        data.clear()
    store = Store(tmp_path, program_hash)
    with pytest.raises(MaterialError):
        store.put(kit_id, bytes(data))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_full_disk_loses_nothing_else(tmp_path, dealer, program_hash):
    store = Store(tmp_path, program_hash)
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[0])

    def write_until_full() -> None:
        with store.incoming(dealer.deal().kit_id) as sink:
            sink.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(MaterialError, match="No space left"):
        write_until_full()
    assert store.ids() == [dealt.kit_id]


def test_files_are_private(tmp_path, dealer, program_hash):
    store = Store(tmp_path, program_hash)
    dealt = dealer.deal()
    store.put(dealt.kit_id, dealt.kits[0])
    (path,) = (tmp_path / "ready").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "ready").stat().st_mode & 0o077 == 0


WORKER = """
import sys
from autorep.mpc.store import Store
store = Store(sys.argv[1], bytes.fromhex(sys.argv[2]))
print("open", flush=True)
for kit_id in store.ids():
    data = store.take(kit_id)
    print(kit_id.hex(), data[160], flush=True)  # first use of the kit's content
"""


def test_killed_at_random_points_no_kit_is_used_twice(tmp_path, dealer, program_hash):
    store = Store(tmp_path, program_hash)
    everything = set()
    for _ in range(60):
        dealt = dealer.deal()
        store.put(dealt.kit_id, dealt.kits[1])
        everything.add(dealt.kit_id.hex())
    random.seed(1)
    used: list[str] = []
    for _ in range(12):
        used += _run_worker_and_kill(tmp_path, program_hash, random.uniform(0, 0.02))
    left = {kit_id.hex() for kit_id in Store(tmp_path, program_hash).ids()}
    assert len(used) == len(set(used)), "a kit was used twice"
    assert not left & set(used), "a used kit is still in the store"
    assert used, "the worker never got to use a kit"
    assert left | set(used) <= everything
    assert not list((tmp_path / "taken").iterdir())


def _run_worker_and_kill(folder: Path, program_hash: bytes, delay: float) -> list[str]:
    command = [sys.executable, "-c", WORKER, str(folder), program_hash.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        return [line.split()[0] for line in process.stdout.read().splitlines() if len(line.split()) == 2]
