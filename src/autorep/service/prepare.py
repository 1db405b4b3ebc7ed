"""Material written ahead to two store directories, for servers that run without a dealer on line."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tqdm import tqdm

from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.dealer import Dealer
from autorep.mpc.store import Store
from autorep.program.files import program_hash
from autorep.program.ir import Program
from autorep.service.session import Blinding, write_blinding


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
    sizes = [0, 0]
    for _ in tqdm(range(count), desc="preparing", unit="inference", leave=False):
        dealt = dealer.deal(1)
        for party in (0, 1):
            stores[party].put(dealt.kit_id, dealt.kits[party])
            sizes[party] += len(dealt.kits[party])
    return sizes[0], sizes[1]
