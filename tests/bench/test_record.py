"""Results on disk."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from autorep.bench.record import record
from autorep.provenance import commit


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    path = record("pi/some", {"online_seconds": 0.06}, "autorep bench pi", tmp_path)
    assert path == tmp_path / "pi" / "some.json"
    document = json.loads(path.read_text())
    assert document["result"] == {"online_seconds": 0.06}
    assert document["command"] == "autorep bench pi"
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["processor"]
    assert {"python", "numpy", "torch"} <= document["versions"].keys()
    assert document["date"].endswith("+00:00")


def test_the_commit_tells_changed_files_apart(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for arguments in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "one"]):
        (tmp_path / "file").write_text("one")
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    clean = commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == clean + "+"
