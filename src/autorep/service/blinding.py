"""The seed of the blinding under which a party's weights are opened, kept beside its kits."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from autorep.errors import MaterialError


@dataclass(frozen=True)
class Blinding:
    """This party's seed of the blinding under which the weights are opened, and the id both parties must agree on."""

    id: str
    seed: bytes = field(repr=False)


def read_blinding(folder: Path) -> Blinding | None:
    """The blinding kept in a store folder, if any."""
    try:
        values = json.loads((folder / "blinding.json").read_text(encoding="utf-8"))
        return Blinding(values["blinding_id"], bytes.fromhex(values["seed"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError):
        raise MaterialError(f"{folder}/blinding.json is damaged; delete this store and prepare it anew") from None


def write_blinding(folder: Path, blinding: Blinding) -> None:
    """Durably, readable by this user only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = folder / "blinding.json.new"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({"blinding_id": blinding.id, "seed": blinding.seed.hex()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / "blinding.json")
