"""The tutorials' commands and programs run as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.notebooks import execute

ROOT = Path(__file__).parent.parent.parent
OWN_MODEL = (ROOT / "docs" / "tutorials" / "own-model.md").read_text(encoding="utf-8")
NOTEBOOK = ROOT / "docs" / "tutorials" / "own-model.ipynb"
OWN_LOOP = (ROOT / "docs" / "tutorials" / "own-loop.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def run(command: str, folder: Path) -> str:
    ended = subprocess.run(
        shlex.split(command), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, (command, ended.stderr[-2000:])
    return ended.stdout


def test_own_loop_runs_as_printed(tmp_path: Path) -> None:
    (program,) = blocks(OWN_LOOP, "python")
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = re.search(r"private accuracy ([\d.]+) % with (\d+) ReLUs", ended.stdout)
    assert found is not None
    assert float(found[1]) > 90
    assert int(found[2]) == 410
    assert (tmp_path / "digits-program" / "manifest.json").exists()


def test_the_notebook_shows_what_it_computed() -> None:
    """Every cell has its outputs, written by one run from top to bottom, and draws the tutorial's own network."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (document["nbformat"], len({cell["id"] for cell in document["cells"]})) == (4, len(document["cells"]))
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    shown = json.dumps([cell["outputs"] for cell in code])
    for expected in (
        "Replacement",
        "Program",
        "data:image/png;base64",
        "every operation can be compiled",
        "triangle, ",
    ):
        assert expected in shown
    assert blocks(OWN_MODEL, "python")[0] in "".join("".join(cell["source"]) + "\n" for cell in code)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    ran = execute(json.loads(NOTEBOOK.read_text(encoding="utf-8")), tmp_path)
    printed = "".join(
        "".join(output.get("text", []))
        for cell in ran["cells"]
        for output in cell.get("outputs", [])
        if "ReLUs" in "".join(output.get("text", []))
    )
    before, after = (float(value) for value in re.findall(r"^([\d.]+) %", printed, re.M))
    assert before > 70
    assert after > before - 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_own_model_runs_as_printed_within_ten_minutes(tmp_path: Path) -> None:
    started = time.monotonic()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    network, client = blocks(OWN_MODEL, "python")
    (tmp_path / "mynet.py").write_text(network)
    commands = [line for block in blocks(OWN_MODEL, "bash") for line in block.splitlines()]
    serve, ask = commands[-2:]
    printed = {command: run(command, tmp_path) for command in commands[:-2]}
    replaced = next(text for command, text in printed.items() if command.startswith("autorep replace"))
    after, before = (float(value) for value in re.findall(r"test accuracy ([\d.]+) %", replaced))
    assert after > before - 5
    assert before > 70
    process = subprocess.Popen(shlex.split(serve), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        authority = re.search(r"--ca (\S+)", process.stdout.readline() + process.stdout.readline())
        assert authority is not None
        answers = run(ask.replace("CA_FILE", authority[1]), tmp_path)
        assert "triangle" in answers
        assert run(f"python -c {shlex.quote(client.replace('CA_FILE', authority[1]))}", tmp_path).split()[-1] == "True"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert time.monotonic() - started < 600
