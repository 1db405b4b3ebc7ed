"""The seed of the blinding under which a party's weights are opened, kept beside its kits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from autorep import private
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
    private.write_text(folder / "blinding.json", json.dumps({"blinding_id": blinding.id, "seed": blinding.seed.hex()}))
