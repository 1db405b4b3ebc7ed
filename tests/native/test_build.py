"""A compiled module whose sources have changed is refused; one that has none beside it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autorep._native import _core
from autorep._native.build import ENDINGS, SOURCES, check, fingerprint
from autorep.errors import ConfigError


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOURCES, tmp_path / "cpp"))


def test_the_module_was_built_from_these_sources() -> None:
    assert _core.fingerprint == fingerprint(SOURCES)


def test_every_source_counts() -> None:
    assert {file.suffix for file in SOURCES.iterdir() if not file.name.startswith(".")} == set(ENDINGS)


@pytest.mark.parametrize("change", ["edited", "added", "removed", "renamed"])
def test_changed_sources_are_refused(change: str, sources: Path) -> None:
    file = sources / "ot.cpp"
    check(_core, sources)
    if change == "edited":
        file.write_bytes(file.read_bytes() + b"\n")
    elif change == "added":
        (sources / "new.h").touch()
    elif change == "removed":
        file.unlink()
    else:
        file.rename(sources / "transfers.cpp")
    with pytest.raises(ConfigError, match=r"built from other sources .* pip install -e \."):
        check(_core, sources)


def test_a_build_that_does_not_know_its_sources_is_refused(sources: Path) -> None:
    old = ModuleType("_core")
    old.__file__ = "_core.so"
    with pytest.raises(ConfigError, match=r"^_core\.so was built"):
        check(old, sources)


def test_an_editor_s_own_files_do_not_count(sources: Path) -> None:
    (sources / ".ot.cpp.swp").touch()
    (sources / "ot.cpp~").touch()
    check(_core, sources)


def test_a_wheel_has_no_sources_and_needs_none(tmp_path: Path) -> None:
    check(ModuleType("_core"), tmp_path / "cpp")


COMMAND = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]  # as installed
from autorep.cli.main import main
sys.exit(main(["prepare", "--bundle", "none", "--out", "none"]))
"""


@pytest.mark.parametrize("stale", [False, True])
def test_a_command_says_it_in_one_line(stale: bool, tmp_path: Path) -> None:
    """The whole way: the package beside changed sources, as after a pull."""
    package = tmp_path / "autorep"
    shutil.copytree(SOURCES.parents[1], package, ignore=shutil.ignore_patterns("__pycache__", "zoo"))
    shutil.copy(_core.__file__, package / "_native")
    if stale:
        (package / "_native" / "cpp" / "new.h").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert ("pip install -e ." in run.stderr) == stale
    assert len(run.stderr.splitlines()) == 1
