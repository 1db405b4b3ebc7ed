"""The record of used kits: what it remembers, over restarts, crashes and damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.errors import MaterialError, UsedError
from autorep.mpc.record import Intervals, Record

PROGRAM = bytes(range(32))


@pytest.fixture
def record(tmp_path) -> Record:
    return Record.begin(tmp_path / "record", PROGRAM)


def spend(record: Record, number: int) -> None:
    kit_id = number.to_bytes(16, "big")
    record.keep(kit_id, b"k" * 32)
    assert record.spend(kit_id) == b"k" * 32


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=40))
def test_intervals_are_a_set(runs):
    intervals, plain = Intervals(), set()
    for first, count in runs:
        intervals.add(first, count)
        plain.update(range(first, first + count))
    assert {number for number in range(70) if number in intervals} == plain
    flat = [number for first, count in intervals for number in range(first, first + count)]
    assert flat == sorted(plain)
    borders = sum(number - 1 not in plain for number in plain)
    assert len(intervals) == borders, "neighbours are merged"


@settings(max_examples=20, deadline=None)
@given(numbers=st.lists(st.integers(0, 2**128 - 1), unique=True, max_size=12), cut=st.integers(0, 40))
def test_what_was_spent_stays_spent_over_a_crash(tmp_path_factory, numbers, cut):
    folder = tmp_path_factory.mktemp("record") / "r"
    record = Record.begin(folder, PROGRAM)
    for number in numbers:
        spend(record, number)
    record.close()
    with open(folder / "used", "ab") as file:  # a line that the crash cut short
        file.write((b"0" * 32 + b" 1")[:cut])
    for _ in range(2):
        record = Record.open(folder, PROGRAM)
        assert all(record.used(number.to_bytes(16, "big")) for number in numbers)
        record.close()
    record = Record.open(folder, PROGRAM)
    spare = next(n for n in range(20) if n not in numbers)
    spend(record, spare)
    record.close()
    reread = Record.open(folder, PROGRAM)
    assert reread.used(spare.to_bytes(16, "big"))
    reread.close()


def test_a_kit_is_spent_once(record):
    record.keep(b"a" * 16, b"k" * 32)
    record.spend(b"a" * 16)
    with pytest.raises(UsedError, match="used before"):
        record.spend(b"a" * 16)
    with pytest.raises(UsedError, match="used before"):
        record.keep(b"a" * 16, b"k" * 32)
    with pytest.raises(UsedError, match="no key"):
        record.spend(b"b" * 16)
    record.close()


def test_a_crash_between_list_and_key_costs_the_kit(record, monkeypatch):
    record.keep(b"a" * 16, b"k" * 32)
    with monkeypatch.context() as patch:
        patch.setattr("autorep.private.shred", lambda path: None)  # as if the process had ended here
        record.spend(b"a" * 16)
    record.close()
    reread = Record.open(record.folder, PROGRAM)
    assert not reread.unused()
    assert not list((record.folder / "keys").iterdir())
    reread.close()


def test_a_long_list_is_rewritten_as_intervals(tmp_path, monkeypatch):
    monkeypatch.setattr("autorep.mpc.record._LONG", 50)
    record = Record.begin(tmp_path / "r", PROGRAM)
    for number in range(100):
        spend(record, 7 * 2**64 + number)
    record.close()
    before = (tmp_path / "r" / "used").stat().st_size
    record = Record.open(tmp_path / "r", PROGRAM)
    assert (tmp_path / "r" / "used").stat().st_size < before / 10
    assert all(record.used((7 * 2**64 + number).to_bytes(16, "big")) for number in range(100))
    assert not record.used((7 * 2**64 + 100).to_bytes(16, "big"))
    spend(record, 7 * 2**64 + 100)
    record.close()


def test_a_disk_that_is_full_in_the_middle_of_a_line_leaves_no_trace(record, monkeypatch):
    record.keep(b"a" * 16, b"k" * 32)
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: real(file, data[:9]))
        with pytest.raises(OSError, match="No space left"):
            record.spend(b"a" * 16)
    assert record.spend(b"a" * 16) == b"k" * 32
    record.close()
    reread = Record.open(record.folder, PROGRAM)
    assert reread.used(b"a" * 16)
    reread.close()


@pytest.mark.parametrize("damage", ["another program", "a line", "empty", "title"])
def test_a_damaged_record_is_refused(tmp_path: Path, damage):
    record = Record.begin(tmp_path / "r", PROGRAM)
    spend(record, 1)
    record.close()
    path, program = tmp_path / "r" / "used", PROGRAM
    if damage == "another program":
        program = bytes(32)
    elif damage == "a line":
        with open(path, "ab") as file:
            file.write(b"nonsense\n")
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(b"x" + path.read_bytes())
    with pytest.raises(MaterialError, match="record"):
        Record.open(tmp_path / "r", program)


def test_a_record_begins_once(record):
    with pytest.raises(MaterialError, match="one already"):
        Record.begin(record.folder, PROGRAM)
    record.close()
