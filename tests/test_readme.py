"""The README's example runs as written, and what it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_example_runs_as_written(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests share the machine's cores
    ended = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = re.findall(r"^(float|fixed|secure) +([\d.]+) %, 205 ReLUs$", ended.stdout, re.M)
    assert [mode for mode, _ in found] == ["float", "fixed", "secure"]
    assert all(float(accuracy) > 90 for _, accuracy in found)


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"make ([a-z]+)\b(?=`|\s+#|;)", TEXT)) <= targets


def test_table_markers_come_in_pairs() -> None:
    assert re.findall(r"<!-- table:(\w+) -->", TEXT) == re.findall(r"<!-- /table:(\w+) -->", TEXT)
