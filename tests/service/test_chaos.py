"""A short stretch of `make chaos`: the faults in the order of a seed, under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from autorep.program.ir import Program
from tests.service.chaos import run


@pytest.mark.slow
def test_a_minute_of_chaos(program: Program, tmp_path: Path) -> None:
    result = run(program, tmp_path, seconds=60, seed=3, patience=60)
    assert result["faults"] >= 3
    assert result["answered"]
    assert result["wrong"] == 0
    assert result["kits_used_twice"] == 0
    assert max(result["slowest_recovery"].values()) < 60  # type: ignore[attr-defined]
