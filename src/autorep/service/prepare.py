"""Material written ahead to two store directories, for servers that run without a dealer on line."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import cast

from tqdm import tqdm

from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.dealer import Dealer
from autorep.mpc.kit import KIT_ID_BYTES
from autorep.mpc.store import Store
from autorep.program.files import program_hash
from autorep.program.ir import Program
from autorep.service.blinding import Blinding, write_blinding


def prepare_stores(program: Program, out: Path, count: int, comparison: str = "dcf") -> tuple[int, int]:
    """Deal `count` inferences to OUT/party0 and OUT/party1; returns the bytes written for each."""
    digest = program_hash(program)
    dealer = Dealer(program, comparison=cast(ComparisonName, comparison))
    folders = [out / f"party{party}" / digest[:16] for party in (0, 1)]
    stores = [Store(folder, bytes.fromhex(digest)) for folder in folders]
    for store, folder, seed in zip(stores, folders, dealer.blinding.seeds):
        for stale in store.ids():  # of earlier blinding, worthless beside the new one
            store.discard(stale)
        write_blinding(folder, Blinding(dealer.blinding.id.hex(), seed))
    for _ in tqdm(range(count), desc="preparing", unit="inference", leave=False):
        kit_id = secrets.token_bytes(KIT_ID_BYTES)
        with stores[0].incoming(kit_id) as sink0, stores[1].incoming(kit_id) as sink1:
            dealer.deal_to((sink0, sink1), kit_id=kit_id)
    size0, size1 = dealer.kit_bytes()
    return count * size0, count * size1
