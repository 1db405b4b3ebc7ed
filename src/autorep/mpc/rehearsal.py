"""What a query will take on this machine, measured in about a second before any run: one party rehearses alone.

The kernels that a program calls, at its own shapes and at this processor's instruction-set level, are what the time of
a query depends on. So party 0 goes through one query with random shares, a kit dealt here, and a link on which the
other party is silent (it sends zeros); of this, processor time is counted. What a round and a byte take is measured on
a TLS connection between two threads of this process. Nothing is fitted to a run between two parties, and the weights do
not matter.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autorep.mpc import tls
from autorep.mpc.blinding import BlindedModel
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.cost import LINKS, Cost
from autorep.mpc.dealer import Dealer
from autorep.mpc.local import share_input
from autorep.mpc.party import Party
from autorep.mpc.transport import FrameReader, Transport
from autorep.mpc.transport_tcp import accept, connect
from autorep.program import ir
from autorep.program.files import share_parameters

LARGEST = 4_000_000_000  # ring multiplications of a query beyond which a rehearsal would take many seconds
_SMALL, _LARGE = 64, 1 << 18  # bytes
_ROUNDS = 60
_PATIENCE = 5.0


class Silence(Transport):
    """A link whose other end answers with zeros, at once."""

    def __init__(self) -> None:
        super().__init__(timeout=1.0)

    def exchange(self, label: str, payload: Any, expect: int) -> memoryview:
        return memoryview(bytes(expect))

    def close(self) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def _transfer(self, header: bytes, payload: memoryview | None, reader: FrameReader | None) -> None:
        raise NotImplementedError("silence is only ever exchanged with")

    def _send_abort(self, message: str) -> None:
        pass


@dataclass(frozen=True)
class LinkSpeed:
    """Seconds on a TLS connection of this machine with itself: of a round, and of every byte that goes both ways."""

    round_seconds: float
    byte_seconds: float


@dataclass(frozen=True)
class Rehearsal:
    """Processor seconds of one query, medians: the dealer's, and one party's beside what the link costs it."""

    dealer_seconds: float
    prepare_seconds: float
    online_seconds: float
    link: LinkSpeed

    def latency(self, counted: Cost, link: str) -> dict[str, float]:
        """Estimated seconds of one query on a named link: network, compute and both, as `Cost.latency` has them."""
        chosen = LINKS[link]
        exchanged = counted.online_bytes_per_party
        network = counted.rounds * chosen.one_way_delay
        if chosen.bytes_per_second is not None:
            network += exchanged / chosen.bytes_per_second
        compute = self.online_seconds + counted.rounds * self.link.round_seconds + exchanged * self.link.byte_seconds
        return {"network_seconds": network, "compute_seconds": compute, "seconds": network + compute}


def rehearse(program: ir.Program, batch: int = 1, comparison: ComparisonName = "dcf", repeats: int = 3) -> Rehearsal:
    """Deal, prepare and run `repeats` queries of random images at party 0, after one that warms up."""
    dealer, party = alone(program, comparison)
    image = np.zeros((batch, *program.input.shape))
    rows = [_query(program, dealer, party, image) for _ in range(repeats + 1)][1:]
    dealt, prepared, ran = (statistics.median(row[phase] for row in rows) for phase in range(3))
    return Rehearsal(dealt, prepared, ran, link_speed())


def alone(program: ir.Program, comparison: ComparisonName = "dcf") -> tuple[Dealer, Party]:
    """A dealer, and party 0 set up beside silence."""
    dealer = Dealer(program, comparison=comparison)
    party = Party(program, share_parameters(program)[0], 0, comparison)
    party.setup(BlindedModel(program, 0, Silence(), dealer.blinding.seeds[0], dealer.blinding.id))
    return dealer, party


def _query(program: ir.Program, dealer: Dealer, party: Party, images: np.ndarray) -> tuple[float, float, float]:
    marks = [time.thread_time()]
    kit = dealer.deal(len(images)).kits[0]
    marks.append(time.thread_time())
    query = party.prepare(party.source(kit))
    marks.append(time.thread_time())
    share = share_input(program, images)[0]
    begun = time.thread_time()
    party.run(Silence(), query, share)
    return marks[1] - marks[0], marks[2] - marks[1], time.thread_time() - begun


def link_speed() -> LinkSpeed:
    """Medians of exchanges over TLS between two threads of this process."""
    with tempfile.TemporaryDirectory(prefix="autorep-rehearsal-") as folder:
        keys = Path(folder) / "keys"
        tls.make_keys(keys, {})
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            dialled = tls.client_context(keys / "party1"), "party0", _PATIENCE
            dialling = pool.submit(connect, "127.0.0.1", listener.getsockname()[1], *dialled)
            listener.settimeout(_PATIENCE)
            raw, _ = listener.accept()
            here = accept(raw, tls.server_context(keys / "party0"), {"party1"}, _PATIENCE)
            there = dialling.result()
            speed = [_round(pool, here, there, size) for size in (_SMALL, _LARGE)]
    here.close()
    there.close()
    return LinkSpeed(speed[0], max(0.0, speed[1] - speed[0]) / (_LARGE - _SMALL))


def _round(pool: ThreadPoolExecutor, here: Transport, there: Transport, size: int) -> float:
    """Seconds of one exchange of messages of this size, one of them in another thread: waking up is part of it."""
    payload = bytes(size)

    def exchange(link: Transport) -> list[float]:
        marks = [time.perf_counter()]
        for _ in range(_ROUNDS):
            link.exchange("rehearsal", payload, size)
            marks.append(time.perf_counter())
        return [after - before for before, after in zip(marks, marks[1:])]

    other = pool.submit(exchange, there)
    spent = exchange(here)
    other.result()
    return statistics.median(spent)
