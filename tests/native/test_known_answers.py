"""Every level gives the recorded answers, which `make arm` compares with those of an emulated ARM processor."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.known_answers import answers, recorded


def test_every_level_gives_the_known_answers(level: str) -> None:
    assert answers() == recorded()


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")), reason="no ARM tools")
def test_arm_gives_the_known_answers() -> None:
    made = subprocess.run(["make", "arm"], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "ARM, neon: as known" in made.stdout
