"""A model whose correlations come from a dealer: its parameters opened once under blinding, its queries read from kits.

Opened is F = W + B for every parameter that correlations multiply: 8 bytes an element, a round for every 4 MB.
B = B₀ + B₁ is uniform and the servers know one part each, so F says nothing about W; the dealer knows B and never
sees F.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autorep.errors import MaterialError
from autorep.mpc.dealt import DEALT, Dealt, Fixed
from autorep.mpc.formats import layout
from autorep.mpc.kit import HEADER_BYTES, TAG_BYTES, Header, read_header
from autorep.mpc.online import Exchange
from autorep.mpc.operations import Operation, protocols
from autorep.mpc.preparation import Preparation, QuerySource
from autorep.mpc.prg import fresh_seed, stream
from autorep.mpc.tape import PartyTape, kit_sections
from autorep.mpc.transport import Transport
from autorep.mpc.verbs import Correlation
from autorep.program import ir

SLICE_BYTES = 1 << 22


@dataclass(frozen=True)
class Blinding:
    """Masks B under which a model's weights are opened once, as two seeds; party i gets seeds[i] and the id."""

    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    seeds: tuple[bytes, bytes] = field(default_factory=lambda: (fresh_seed(), fresh_seed()), repr=False)


def blinding_share(seed: bytes, label: str, shape: ir.Shape) -> np.ndarray:
    """One party's share of B of one parameter."""
    return stream(seed, f"model/{label}", shape)


class BlindedModel(Preparation):
    """One server's side: F, packed (of weights −F, for what is wanted of them is −W∗ρ), and the reader of kits.

    Args:
        link: to the other server; used while the party is set up.
        seed: this party's seed of the blinding.
    """

    def __init__(self, program: ir.Program, party: int, link: Transport, seed: bytes, blinding_id: bytes) -> None:
        self._program, self._exchange, self._seed = program, Exchange(party, link), seed
        self._blinding_id = blinding_id
        self._opened: dict[str, Any] = {}
        self._layouts: dict[tuple[int, int, str], Layout] = {}

    def parameter(self, operation: Operation, name: str, share: np.ndarray) -> None:
        """Open F of one parameter."""
        label, link = f"{operation.op.name}.{name}", self._exchange.transport
        link.phase = "offline"
        opened = blinding_share(self._seed, label, share.shape)
        opened += share
        rows = max(1, SLICE_BYTES * len(opened) // opened.nbytes)
        for start in range(0, len(opened), rows):  # in place and in slices: large weights set the peak of memory
            part = opened[start : start + rows]
            part[:] = self._exchange.open(label, [(part, 64)])[0]
        link.phase = "online"
        if name == "weight":
            np.negative(opened, out=opened)
        self._opened[label] = operation.pack(name, opened, lean=True)

    def source(self, kit: bytes | memoryview) -> KitSource:
        """The reader of one kit, which must be whole and made under this blinding."""
        header = read_header(kit)
        if header.blinding_id != self._blinding_id:
            raise MaterialError(
                f"kit {header.kit_id.hex()}: made for another blinding of the weights than this server's; "
                "prepare new kits"
            )
        laid = self._layout(header)
        if header.layout != laid.name or len(kit) != laid.bytes:
            raise MaterialError(
                f"kit {header.kit_id.hex()}: {len(kit)} bytes in another layout than the {laid.bytes} bytes this "
                "release reads; run the same release of autorep on dealer and servers, and prepare new kits"
            )
        return KitSource(header, laid, kit, self._opened)

    def _layout(self, header: Header) -> Layout:
        """What such a kit must hold; the same for every kit of that batch and comparison."""
        key = header.party, header.batch, header.comparison
        if key not in self._layouts:
            operations = protocols(self._program, header.batch, header.comparison)
            verbs = {c.label: DEALT[type(c)](c) for operation in operations for c in operation.correlations()}
            items = [item for verb in verbs.values() for item in verb.items]
            due = HEADER_BYTES + sum(item.bytes_to(header.party) for item in items) + TAG_BYTES
            self._layouts[key] = Layout(verbs, kit_sections(items, header.party), layout(items), due)
        return self._layouts[key]


@dataclass(frozen=True)
class Layout:
    """A party's kits of one batch size and comparison: verbs and sections by label, the layout's name, all bytes."""

    verbs: dict[str, Dealt]
    sections: dict[str, slice]
    name: bytes
    bytes: int


class KitSource(QuerySource):
    """What a dealer wrote for one party and one query."""

    def __init__(self, header: Header, laid: Layout, kit: bytes | memoryview, opened: Fixed) -> None:
        self.kit_id, self.party, self.batch = header.kit_id, header.party, header.batch
        self.comparison, self.program_hash = header.comparison, header.program_hash
        self._tape, self._verbs, self._opened = PartyTape(header, laid.sections, kit), laid.verbs, opened

    def draw(self, correlation: Correlation, *operands: np.ndarray) -> Any:
        return self._verbs[correlation.label].read(self._tape, self._opened, *operands)
