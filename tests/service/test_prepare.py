"""Material made ahead: moved into a store, never used twice, whatever is copied."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from autorep.cli.main import main
from autorep.errors import MaterialError
from autorep.mpc.store import Store, record_folder
from autorep.program.files import program_hash, split
from autorep.program.ir import Program
from autorep.service import prepare as prepare_module
from autorep.service.blinding import read_blinding
from autorep.service.prepare import move_in, prepare


@pytest.fixture
def material(program: Program, tmp_path: Path) -> Path:
    prepare(program, tmp_path / "material", 3)
    return tmp_path / "material" / "party1"


@pytest.fixture
def folder(program: Program, tmp_path: Path) -> Path:
    return tmp_path / "store" / program_hash(program)[:16]


def use_all(folder: Path, program: Program) -> int:
    store = Store(folder, bytes.fromhex(program_hash(program)))
    ids = store.ids()
    for kit_id in ids:
        store.take(kit_id)
    store.close()
    return len(ids)


def test_material_is_moved_not_copied(material: Path, folder: Path, program: Program) -> None:
    blinding = read_blinding(material / folder.name)
    (moved,) = move_in(material, folder.parent, begin=True)
    assert (moved.kits, moved.refused, moved.program) == (3, 0, program_hash(program))
    assert not [path for path in material.rglob("*") if path.is_file()]
    assert read_blinding(folder) == blinding
    assert use_all(folder, program) == 3


def test_a_second_copy_of_used_material_is_refused(
    material: Path, folder: Path, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(material, tmp_path / "copy")
    move_in(material, folder.parent, begin=True)
    use_all(folder, program)
    capsys.readouterr()
    assert main(["import", str(tmp_path / "copy"), "--store", str(folder.parent), "--json", "-"]) == 1
    (entry,) = json.loads(capsys.readouterr().out)["programs"]
    assert (entry["kits"], entry["refused"]) == (0, 3)
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_file()], "a used kit is left in clear"
    assert use_all(folder, program) == 0


def test_without_a_record_the_operator_must_say_that_it_is_the_first(material: Path, folder: Path) -> None:
    with pytest.raises(MaterialError, match="--begin"):
        move_in(material, folder.parent)
    assert len(list((material / folder.name / "kits").iterdir())) == 3
    move_in(material, folder.parent, begin=True)


def test_material_from_before_the_record_is_refused(
    material: Path, folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autorep.mpc.record.time.time", lambda: 4e9)
    Store(folder, bytes.fromhex(program_hash(program))).close()  # a server that begins later
    with pytest.raises(MaterialError, match="before this server's record"):
        move_in(material, folder.parent)
    assert len(list((material / folder.name / "kits").iterdir())) == 3


def test_a_move_that_was_cut_off_is_finished_by_the_next(
    material: Path, folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module.private, "shred", crash)
        with pytest.raises(KeyboardInterrupt):
            move_in(material, folder.parent, begin=True)
    (moved,) = move_in(material, folder.parent)
    assert (moved.kits, moved.refused) == (3, 0)
    assert use_all(folder, program) == 3


def test_new_material_replaces_that_of_an_older_blinding(
    material: Path, folder: Path, program: Program, tmp_path: Path
) -> None:
    move_in(material, folder.parent, begin=True)
    prepare(program, tmp_path / "more", 2)
    move_in(tmp_path / "more" / "party1", folder.parent)
    assert use_all(folder, program) == 2


def test_a_running_server_keeps_its_store_to_itself(material: Path, folder: Path, program: Program) -> None:
    store = Store(folder, bytes.fromhex(program_hash(program)))
    with pytest.raises(MaterialError, match="stop that server first"):
        move_in(material, folder.parent)
    store.close()


def test_files_of_programs_and_material_are_private(program: Program, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        split(program, tmp_path / "model")
        prepare(program, tmp_path / "material", 1)
    finally:
        os.umask(before)
    for top in ("model", "material"):
        for path in (tmp_path / top, *(tmp_path / top).rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path


def test_an_empty_folder_is_no_material(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(MaterialError, match="no prepared material"):
        move_in(tmp_path, folder.parent)
    assert not record_folder(folder).exists()
