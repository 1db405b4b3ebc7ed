"""Results on disk: one JSON file per benchmark, with the machine, the commit, the versions, the date, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autorep.provenance import provenance

RESULTS = Path("bench") / "results"


def record(name: str, result: dict[str, Any], command: str | None = None, folder: Path = RESULTS) -> Path:
    """Write `result` to FOLDER/NAME.json together with where it comes from."""
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"name": name, **provenance(command), "result": result}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path
