"""How a store's kits were made: under which blinding of the weights, or by the two servers without a dealer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from autorep import private
from autorep.errors import MaterialError
from autorep.mpc.blinding import BlindedModel
from autorep.mpc.preparation import Preparation
from autorep.mpc.transport import Transport
from autorep.mpc.two_party.model import TwoPartyModel
from autorep.program.files import program_hash
from autorep.program.ir import Program


@dataclass(frozen=True)
class Blinding:
    """This party's seed of the blinding under which the weights are opened, and the id both parties must agree on.

    Where the servers made the kits themselves nothing is opened: `preparation` says how, and the seed is empty.
    """

    id: str
    seed: bytes = field(repr=False)
    preparation: str = "dealer"

    def model(self, program: Program, party: int, link: Transport) -> Preparation:
        """What a party is set up with; a dealer's model opens its weights over the link."""
        if self.preparation == "dealer":
            return BlindedModel(program, party, link, self.seed, bytes.fromhex(self.id))
        return TwoPartyModel(program, party, self.preparation)


def made_together(program: Program, preparation: str) -> Blinding:
    """Of kits made by the two servers; the kits themselves are bound to each server's parameter shares."""
    digest = hashlib.sha256(f"{preparation}/{program_hash(program)}".encode()).hexdigest()
    return Blinding(digest[:32], b"", preparation)


def read_blinding(folder: Path) -> Blinding | None:
    """The blinding kept in a store folder, if any."""
    try:
        values = json.loads((folder / "blinding.json").read_text(encoding="utf-8"))
        return Blinding(values["blinding_id"], bytes.fromhex(values["seed"]), values.get("preparation", "dealer"))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError):
        raise MaterialError(f"{folder}/blinding.json is damaged; delete this store and prepare it anew") from None


def write_blinding(folder: Path, blinding: Blinding) -> None:
    """Durably, readable by this user only."""
    values = {"blinding_id": blinding.id, "seed": blinding.seed.hex(), "preparation": blinding.preparation}
    private.write_text(folder / "blinding.json", json.dumps(values))
