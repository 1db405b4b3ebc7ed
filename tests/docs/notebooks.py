"""Run a notebook's cells in order, without Jupyter, and keep what they print and show.

    python -m tests.docs.notebooks docs/tutorials/own-model.ipynb      # rewrites the outputs, in a scratch folder

Understood beside Python: `!command` lines and `%%writefile NAME` cells. Progress on standard error is not kept.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def execute(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with fresh outputs; its code runs in `folder`, where examples/ is as in a source checkout."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    with contextlib.chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell = {**cell, "execution_count": number, "outputs": _outputs("".join(cell["source"]), names, number)}
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    if source.startswith("%%writefile "):
        head, _, body = source.partition("\n")
        Path(head.split()[1]).write_text(body, encoding="utf-8")
        return [_stream(f"Writing {head.split()[1]}\n")]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if source.startswith("!"):
            for line in source.splitlines():
                print(_shell(line.removeprefix("!")), end="")
            shown = None
        else:
            shown = _python(source, names, number)
    outputs = [_stream(printed.getvalue())] if printed.getvalue() else []
    if shown is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": _data(shown)}
        )
    return outputs


def _shell(line: str) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, (line, ended.stderr[-2000:])
    return ended.stdout


def _python(source: str, names: dict[str, Any], number: int) -> Any:
    """Run a cell; the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"<cell {number}>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)


def _data(value: Any) -> dict[str, list[str]]:
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return data


def _stream(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def main(path: Path) -> None:
    started, processor = time.monotonic(), os.times()
    with tempfile.TemporaryDirectory() as folder:
        finished = execute(json.loads(path.read_text(encoding="utf-8")), Path(folder))
    path.write_text(json.dumps(finished, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    used = sum(os.times()[:4]) - sum(processor[:4])
    print(f"{path}: {time.monotonic() - started:.0f} s, {used:.0f} s of processor time")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
