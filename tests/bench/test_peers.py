"""The comparison with CrypTen: what can be checked without installing it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from autorep import _native
from autorep.bench.everything import FULL, QUICK
from autorep.bench.networks import build_program
from autorep.bench.peer_systems import CRYPTEN, SAME_LEVEL, SPU, PeerSystem, two_peers
from autorep.errors import ConfigError
from autorep.report import tables


@pytest.mark.parametrize("system", [CRYPTEN, SPU])
def test_outside_a_checkout_the_missing_script_is_named(
    system: PeerSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"{system.package}_shim"):
        system.install(tmp_path / "peers")


def test_what_is_installed_already_is_not_installed_again(tmp_path: Path) -> None:
    (tmp_path / "spu" / "spu").mkdir(parents=True)
    system = dataclasses.replace(SPU, requirements=("no-such-package-anywhere",), script=Path(__file__))
    assert system.install(tmp_path) == tmp_path / "spu"


@pytest.mark.parametrize("level", ["avx2", "avx2-aesni", "portable", None])
def test_where_our_kernels_are_held_to_avx2_so_are_the_other_systems(level: str | None, tmp_path: Path) -> None:
    try:
        _native.set_simd(level or "auto")
    except ValueError:
        pytest.skip(f"this processor does not offer {level}")
    finally:
        _native.set_simd("auto")
    script = tmp_path / "party.py"
    script.write_text(
        "import os, sys\n"
        "from multiprocessing.connection import Connection\n"
        "from autorep.bench import processes\n"
        "control = Connection(int(sys.argv[1]))\n"
        "processes.receive(control)\n"
        f"found = [os.environ.get(name) for name in {list(SAME_LEVEL['avx2'])}]\n"
        "processes.send(control, {'instructions': str(found)})\n"
        "processes.receive(control)\n"
    )
    (tmp_path / "crypten" / "crypten").mkdir(parents=True)
    program = build_program("digits_net", relus=0)
    images = np.zeros((1, *program.input.shape))
    unlimited = str([os.environ.get(name) for name in SAME_LEVEL["avx2"]])
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AUTOREP_SIMD", raising=False)
        if level is not None:
            patch.setenv("AUTOREP_SIMD", level)
        with two_peers(dataclasses.replace(CRYPTEN, script=script), program, images, tmp_path) as pair:
            limited = str(list(SAME_LEVEL["avx2"].values()))
            assert pair.instructions == (limited if level in ("avx2", "avx2-aesni") else unlimited)


def test_a_row_without_statistics_prints_blanks() -> None:
    row = {"system": "SPU 0.9.5", "variant": "all ReLUs", "seconds": 9.0, "bytes_per_party": None, "rounds": None}
    assert "None" not in tables.peers({"rows": [row], "notes": []}).text()


def test_rows_are_printed_with_ratio_and_notes() -> None:
    row = {"variant": "all ReLUs", "seconds": 0.2, "bytes_per_party": 6e6, "rounds": 34}
    rows = [{"system": "AutoReP", "ratio": 9.0, **row}, {"system": "CrypTen 0.4.1", **row}]
    text = tables.peers({"rows": rows, "notes": ["What each counts."]}).text()
    assert "9.0×" in text
    assert "What each counts." in text


def test_every_measured_case_has_a_name_of_its_own() -> None:
    names = [case.name + setting.suffix for case in (*QUICK, *FULL) for setting in case.settings]
    assert len(names) == len(set(names))
