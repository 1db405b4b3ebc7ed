"""`autorep bench cost`: processor time by the processes' own counters, for the engine and for a whole deployment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autorep import _native
from autorep.bench.processor import measure
from autorep.report import tables
from autorep.service.processor_time import processor_seconds


def test_counters_see_a_process_and_its_children() -> None:
    code = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True)\\n"
while time.process_time() < 0.2: pass
subprocess.run([sys.executable, "-c", burn], stdout=subprocess.DEVNULL)
child = subprocess.Popen([sys.executable, "-c", burn + "time.sleep(60)"], stdout=subprocess.PIPE)
child.stdout.read(1)
print(flush=True)
sys.stdin.read()
child.kill()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    spent = processor_seconds(process.pid)
    process.communicate()
    assert 0.7 < spent < 6  # 0.8 s of it on purpose; one child less would be 0.5


def test_threads_and_children_may_end_while_counters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    listed = Path.iterdir
    missing = Path(f"/proc/{os.getpid()}/task/{gone.pid}")
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([missing, *listed(self)]))
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, **how: str(gone.pid) if self.name == "children" and self.exists() else read(self, **how),
    )
    assert processor_seconds(os.getpid()) > 0
    with pytest.raises(FileNotFoundError):
        processor_seconds(gone.pid)  # but the process asked for must be there


@pytest.mark.slow
def test_every_part_costs_something_and_the_level_is_restored() -> None:
    level = _native.simd()
    result = measure([("digits_net", None)], ["portable"], repeats=1, service_queries=2, load_seconds=0.5)
    assert _native.simd() == level
    assert "AUTOREP_SIMD" not in os.environ
    (row,) = result["rows"]
    assert min(row["cpu_seconds"].values()) > 0
    assert row["simd"] == "portable"
    assert row["service"]["total"] == pytest.approx(sum(row["service"][r] for r in ("dealer", "party0", "party1")))
    assert row["service"]["party0"] > 0
    assert "in all" in tables.processor(result).text()
    assert [measured["clients"] for measured in row["load"]] == [1, 4, 16]
    assert all(measured["answered"] >= measured["clients"] for measured in row["load"])
    assert all(measured["failed"] == 0 for measured in row["load"])
    assert "answers a second" in tables.load(result).text()
