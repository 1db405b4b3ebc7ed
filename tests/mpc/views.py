"""Everything a party sees of one query, and statistics that find structure in it.

Images are all zero: what is not masked well then stands out against nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np

from autorep import _native
from autorep.mpc.local import LocalPair, share_input
from autorep.mpc.online import Exchange
from autorep.mpc.ring import reduce
from autorep.mpc.tape import PartyTape
from autorep.program import ir
from tests.chance import coincidences, fair

COMMON = 44  # bits in which values of different rings are compared


@dataclass(frozen=True)
class Seen:
    """One tensor: where it came from and the ring it is said to be uniform in."""

    party: int
    origin: str  # mask, share, xor, keys (from the kit); sent, opened (online)
    label: str
    bits: int
    values: np.ndarray = field(repr=False)


@dataclass
class View:
    """One query of both parties.

    Attributes:
        seen: all that was read from kits, sent and opened.
        masks: the effective mask of every opening and every wire, in the clear: opened value minus true value.
        answers, answer_bits: both parties' shares of the answer, and the ring they are in.
        unread: labels of a kit that nobody asked for.
    """

    seen: list[Seen] = field(default_factory=list, repr=False)
    masks: dict[str, tuple[np.ndarray, int]] = field(default_factory=dict, repr=False)
    answers: tuple[np.ndarray, ...] = field(default=(), repr=False)
    answer_bits: int = 0
    unread: set[str] = field(default_factory=set)


@contextmanager
def watching(view: View) -> Iterator[list[PartyTape]]:
    """Record what tapes give and what is exchanged."""
    tapes: list[PartyTape] = []

    def recorded(origin):
        original = getattr(PartyTape, origin)

        def spy(self, item):
            values = original(self, item)
            if self not in tapes:
                tapes.append(self)
            words = np.ascontiguousarray(values[:, :8]).view(np.uint64) if origin == "keys" else values.copy()
            bits = 64 if origin in ("keys", "xor") else item.bits
            if origin != "keys" or self._party == 0:  # keys are the same at both
                view.seen.append(Seen(self._party, origin, item.label, bits, words.reshape(-1)))
            return values

        return patch.object(PartyTape, origin, spy)

    shares = PartyTape.shares

    def spy_shares(self, items):
        """Several at once: P0 gets keys of streams, P1 packed values."""
        given = shares(self, items)
        for item, part in zip(items, given):
            if self._party == 0:
                values = _native.prg(part, np.empty(item.count, np.uint64), item.bits)
            else:
                values = _native.unpack(part, item.count, item.bits)
            view.seen.append(Seen(self._party, "share", item.label, item.bits, values))
        return given

    def note(exchange, label, share, opened, bits):
        view.seen.append(Seen(exchange.party, "sent", label, bits, reduce(share.copy(), bits).reshape(-1)))
        if exchange.party == 0:  # the same at both
            view.seen.append(Seen(0, "opened", label, bits, opened.copy().reshape(-1)))

    swap, open_xor = Exchange._swap, Exchange.open_xor

    def spy_swap(self, label, parts, payload=None):
        received = swap(self, label, parts, payload)
        for (share, bits), theirs in zip(parts, received):
            note(self, label, share, _native.open_packed(share, theirs, bits), bits)
        return received

    def spy_xor(self, label, words):
        opened = open_xor(self, label, words)
        note(self, label, words, opened, 64)
        return opened

    with (
        recorded("mask"), recorded("share"), recorded("xor"), recorded("keys"),
        patch.object(PartyTape, "shares", spy_shares), patch.object(Exchange, "_swap", spy_swap),
        patch.object(Exchange, "open_xor", spy_xor),
    ):  # fmt: skip
        yield tapes


def view_of(program: ir.Program, batch: int, comparison: str = "dcf") -> View:
    """What both parties see of `batch` black images."""
    view = View(answer_bits=program.output.bits)
    with LocalPair(program, comparison) as pair, watching(view) as tapes:
        owed: dict[str, np.ndarray] = {}
        kits, inputs = pair.kits(batch, owed), share_input(program, np.zeros((batch, *program.input.shape)))
        traces: list[dict[str, np.ndarray]] = [{}, {}]
        wires: list[dict[str, np.ndarray]] = [{}, {}]

        def one(i: int) -> np.ndarray:
            party = pair.parties[i]
            query = party.prepare(party.source(kits[i]), traced=True)
            wires[i] = {name: mask.copy() for name, mask in query.masks.items()}
            return party.run(pair._links[i], query, inputs[i], traces[i])

        view.answers = tuple(pair._both(one))
    view.unread = {label for tape in tapes for label in tape._sections}
    opened = {s.label: s for s in view.seen if s.origin == "opened"}
    for op in program.ops:
        if isinstance(op, ir.Input | ir.Requantize | ir.Activation | ir.MaxPool):  # others only rearrange
            rho = wires[0][op.name] + wires[1][op.name]
            view.masks[f"{op.name} wire"] = reduce(rho, op.bits).reshape(-1), op.bits
        if isinstance(op, ir.Requantize | ir.Activation):
            name = op.inputs[0]
            value = (traces[0][name] + traces[1][name] + owed.get(name, np.uint64(0))).reshape(-1)
            first = opened[f"{op.name}/a"]
            mask = first.values - value - np.uint64(1 << (op.open_bits - 2))
            view.masks[f"{op.name} sum"] = reduce(mask, op.open_bits), op.open_bits
    return view


def unbalanced(values: np.ndarray, bits: int) -> list[int]:
    """Bits that are not one in half of the values, beyond chance."""
    ones = [np.count_nonzero((values >> np.uint64(bit)) & np.uint64(1)) for bit in range(bits)]
    return [bit for bit, found in enumerate(ones) if not fair(found, values.size)]


def repeated(tensors: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    """Pairs of tensors (or one with itself) that have values in common, modulo 2**44, beyond chance."""
    values = np.concatenate([reduce(tensor.copy(), COMMON) for tensor in tensors.values()])
    owner = np.repeat(np.arange(len(tensors)), [tensor.size for tensor in tensors.values()])
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order][1:] == values[order][:-1])
    if len(again) <= coincidences(len(values) ** 2 / 2, COMMON):
        return []
    names = list(tensors)
    return sorted({(names[owner[order[i]]], names[owner[order[i + 1]]]) for i in again})
