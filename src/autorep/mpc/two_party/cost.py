"""What preparing between two servers sends, counted before any run: every frame, as the makers send them.

A `Frame` is one message; where both parties send one, they do so at once. A run's ledger equals this byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autorep._native import ot as transfer
from autorep.mpc import verbs
from autorep.mpc.kit import KIT_ID_BYTES
from autorep.mpc.operations import protocols
from autorep.mpc.ot import base
from autorep.mpc.ot.extension import CHUNK, Modulus, power, receiver_bytes, sender_bytes
from autorep.mpc.ot.tools import BIT
from autorep.mpc.prg import SEED_BYTES
from autorep.mpc.rlwe import linear, slots
from autorep.mpc.rlwe.packing import pack
from autorep.mpc.rlwe.parameters import linear_ring, public_key_bytes, slot_ring
from autorep.mpc.transport import FRAME_OVERHEAD
from autorep.mpc.two_party.cross import WORD, way
from autorep.mpc.two_party.estimate import ONE_CORE, Speed, Work, lattice_work
from autorep.mpc.two_party.model import ORDER_BYTES, linear_layers
from autorep.mpc.two_party.stored import correlations, kit_bytes
from autorep.program import ir


@dataclass(frozen=True)
class Frame:
    """Payload that party 0 and party 1 send under one label; None where a party sends no frame."""

    label: str
    sent: tuple[int | None, int | None]

    def bytes(self, party: int) -> int:
        payload = self.sent[party]
        return 0 if payload is None else payload + FRAME_OVERHEAD


def _to_p1(label: str, size: int) -> Frame:
    return Frame(label, (size, None))


def _to_p0(label: str, size: int) -> Frame:
    return Frame(label, (None, size))


def _each(label: str, size: int) -> Frame:
    return Frame(label, (size, size))


def _pieces(count: int) -> list[int]:
    return [min(CHUNK, count - start) for start in range(0, count, CHUNK)]


def _private(label: str, count: int, parts: Sequence[Modulus]) -> Iterator[Frame]:
    """Transfers from P0 to P1."""
    for piece in _pieces(count):
        yield _to_p0(f"{label}/choose", receiver_bytes(piece))
        yield _to_p1(f"{label}/values", sender_bytes(piece, parts))


def _both(label: str, count: int, parts: Sequence[Modulus]) -> Iterator[Frame]:
    """Transfers in both directions."""
    for piece in _pieces(count):
        yield _each(f"{label}/choose", receiver_bytes(piece))
        yield _each(f"{label}/values", sender_bytes(piece, parts))


def setup_frames(program: ir.Program, preparation: str = "two-party") -> Iterator[Frame]:
    """Once per start of a pair of makers."""
    yield _each("ot/base/keys", base.FIRST_BYTES)
    yield _each("ot/base/sums", base.SECOND_BYTES)
    if preparation == "ot":
        return
    yield _each("keys/linear", public_key_bytes(linear_ring()))
    yield _each("keys/slots", public_key_bytes(slot_ring()))
    if count := _quadratics(program):
        for name in "ab":
            yield from _private(f"model/{name}", count, [slots.MODULUS])
        yield _each("model/a/encrypted", SEED_BYTES + slots.request_bytes(slots.blocks_of(count)))


def make_frames(program: ir.Program, count: int = 1, batch: int = 1, preparation: str = "two-party") -> Iterator[Frame]:
    """One call that makes `count` kits of `batch` images."""
    found = correlations(program, batch)

    def of(kind: type) -> list[Any]:
        return [c for c in found if isinstance(c, kind)]

    yield _to_p1("prepare/kits", ORDER_BYTES + count * KIT_ID_BYTES)
    lifted = [c for c in of(verbs.Truncation) if c.wrap_bits]
    if lifted:
        ring, number = power(1 + max(c.wrap_bits for c in lifted)), count * sum(c.count for c in lifted)
        yield from _wraps("truncation", number, ring)
    yield from (_linear_lattice if preparation == "two-party" else _linear_transfers)(program, count * batch)
    if products := of(verbs.Product):
        bits = max(c.bits for c in products)
        yield from _both("product", count * bits * sum(c.count for c in products), [power(bits)])
    if planes := of(verbs.Bits):
        for place in range(max(c.width for c in planes) - 1):
            yield from _both(f"bits/{place}", count * sum(c.count for c in planes), [BIT])
    if triples := of(verbs.BitTriples):
        yield from _both("triples", 64 * count * sum(c.count for c in triples), [BIT])
    if selections := of(verbs.Selection):
        number = count * sum(c.points * c.count for c in selections)
        ring, wrap = power(max(c.bits for c in selections)), power(max(1, *(c.wrap_bits for c in selections)))
        yield from _private("selection/delta", number, [ring])
        yield from _both("selection", number, [ring, wrap])
    if quadratics := of(verbs.Quadratic):
        yield from _quadratic_frames(program, quadratics, count, batch, preparation)


def _wraps(label: str, count: int, ring: Modulus) -> Iterator[Frame]:
    yield from _private(f"{label}/carry", count, [ring, BIT])
    yield from _private(f"{label}/msb", count, [ring])


def _linear_lattice(program: ir.Program, images: int) -> Iterator[Frame]:
    packings = [pack(layer) for layer in linear_layers(program)]
    yield _each("linear/request", SEED_BYTES + sum(linear.request_bytes(packing, images) for packing in packings))
    for packing in packings:
        yield _each(f"{packing.layer.name}/answer", packing.answer_bytes(images))


def _linear_transfers(program: ir.Program, images: int) -> Iterator[Frame]:
    for layer in linear_layers(program):
        terms = layer.channels // layer.groups * prod(layer.kernel)
        number = terms * images * prod(layer.out_side) * layer.ring_bits
        for group in range(layer.groups):
            parts = [power(layer.ring_bits)] * (layer.outputs // layer.groups)
            yield from _both(f"{layer.name}/{group}", number, parts)


def _quadratic_frames(
    program: ir.Program, quadratics: Sequence[verbs.Quadratic], count: int, batch: int, preparation: str
) -> Iterator[Frame]:
    number, ring = count * sum(c.count for c in quadratics), way(preparation).ring
    yield from _wraps("quadratic", number, ring)
    if preparation == "two-party":
        held = [part.stop - part.start for part in slots.halves(count * batch * slots.blocks_of(_quadratics(program)))]
        requests = SEED_BYTES + slots.request_bytes(held[0]), SEED_BYTES + slots.request_bytes(held[1])
        answers = slots.answer_bytes(held[1]), slots.answer_bytes(held[0])
        for request, answer in (("rho", "p"), ("difference", "q")):
            yield Frame(f"quadratic/{request}", requests)
            yield Frame(f"quadratic/{answer}", answers)
        for value in "pq":
            yield from _private(f"quadratic/{value}/lift", number, [WORD])
    else:
        for value in "pq":
            yield from _both(f"quadratic/{value}", 64 * number, [WORD])
    if wrapped := [c for c in quadratics if c.wrap_bits]:
        ring = power(max(c.wrap_bits for c in wrapped))
        yield from _both("quadratic/wrap", count * sum(c.count for c in wrapped), [ring, ring])


def _quadratics(program: ir.Program) -> int:
    return sum(op.quad_count for op in program.ops if isinstance(op, ir.Activation))


@dataclass(frozen=True)
class PreparationCost:
    """Bytes (frame headers included), flights and work of preparing one query of `batch` images, `count` at a time.

    Attributes:
        sent: by either party, for one query.
        flights, longer_way, work: of all `count` together; `longer_way` adds up the larger direction of every message.
    """

    preparation: str
    count: int
    setup_bytes: tuple[int, int]
    sent: tuple[float, float]
    flights: int
    longer_way: int
    work: Work
    kit_bytes: int

    def seconds(self, bytes_per_second: float, one_way_delay: float, speed: Speed = ONE_CORE) -> dict[str, float]:
        """Estimate for one query on a link: network, compute and both. Computing and sending do not overlap."""
        network = self.flights * one_way_delay + self.longer_way / bytes_per_second
        compute = self.work.seconds(speed) + self.flights * speed.frame
        parts = {"network_seconds": network, "compute_seconds": compute, "seconds": network + compute}
        return {name: value / self.count for name, value in parts.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "preparation": self.preparation,
            "kits_at_a_time": self.count,
            "preparing_bytes": sum(self.sent),
            "preparing_bytes_party0": self.sent[0],
            "preparing_bytes_party1": self.sent[1],
            "preparing_flights": self.flights,
            "preparing_setup_bytes": sum(self.setup_bytes),
            "kit_bytes": self.kit_bytes,
        }


def preparation_cost(
    program: ir.Program, count: int = 4, batch: int = 1, preparation: str = "two-party"
) -> PreparationCost:
    """Count one query's preparation, amortised over `count` made together."""
    once, made = list(setup_frames(program, preparation)), list(make_frames(program, count, batch, preparation))
    setup0, setup1 = (sum(frame.bytes(party) for frame in once) for party in (0, 1))
    sent0, sent1 = (sum(frame.bytes(party) for frame in made) / count for party in (0, 1))
    longer = sum(max(frame.bytes(0), frame.bytes(1)) for frame in made)
    work = _work(program, made, count, batch, preparation)
    return PreparationCost(
        preparation, count, (setup0, setup1), (sent0, sent1), len(made), longer, work, kit_bytes(program, batch)
    )


def _work(program: ir.Program, frames: Sequence[Frame], count: int, batch: int, preparation: str) -> Work:
    def carried(suffix: str) -> int:
        return sum(sum(filter(None, frame.sent)) for frame in frames if frame.label.endswith(suffix))

    found = Work()
    if preparation == "two-party":
        found = lattice_work(map(pack, linear_layers(program)), count * batch, _quadratics(program))
    return replace(
        found,
        transfers=carried("/choose") // transfer.MESSAGE_BYTES,
        values=carried("/values"),
        multiplications=count * sum(op.multiplications() for op in protocols(program, batch, "bits")),
    )
