"""A kit made by the two servers: what it keeps of every verb, and how a query reads it.

Each party's kit holds its own shares, alike in size. A mask costs nothing: it is expanded from the party's seed, as are
the bits a, b of triples and δ of selections, and truncations without wrap bit follow from their mask.
The header is the dealer's; in place of a blinding it names this party's own parameter shares, so that a kit made for
shares that were replaced since is refused.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from autorep import _native
from autorep.errors import MaterialError
from autorep.mpc import verbs
from autorep.mpc.formats import layout
from autorep.mpc.kit import HEADER_BYTES, TAG_BYTES, Header, KitWriter
from autorep.mpc.operations import protocols
from autorep.mpc.preparation import QuerySource
from autorep.mpc.prg import stream
from autorep.mpc.ring import U64, reduce
from autorep.mpc.sizes import Item, Part
from autorep.mpc.two_party.rounding import HEADROOM, ROUNDING, truncate
from autorep.mpc.verbs import Correlation, QuadraticShares, SelectionShares
from autorep.program import ir

Results = Mapping[str, list[np.ndarray]]  # label of a correlation -> its stored tensors


def tensors(c: Correlation) -> list[Part]:
    """What a kit keeps of one correlation."""
    match c:
        case verbs.Truncation() if c.wrap_bits:
            return [Part(c.count, c.bits), Part(c.count, c.wrap_bits)]
        case verbs.Product():
            return [Part(c.count, c.bits)]
        case verbs.LinearImage():
            return [Part(c.count, c.op.bits)]
        case verbs.Quadratic():
            full, wrap = Part(c.count, c.op.quad_open_bits), Part(c.count, c.wrap_bits)
            return [full, full, wrap, wrap] if c.wrap_bits else [full, full]
        case verbs.Bits():
            return [Part(c.width * ((c.count + 63) // 64), 64)]
        case verbs.BitTriples():
            return [Part(c.count, 64)]
        case verbs.Selection():
            products = Part(c.points * c.count, c.bits), Part(c.points * c.count, c.wrap_bits)
            return [products[0], products[0], products[1]] if c.wrap_bits else [products[0], products[0]]
        case verbs.ComparisonKeys() | verbs.SignKeys() | verbs.BitKeys():
            raise MaterialError("comparison keys need a dealer; prepare between two servers with --comparison bits")
    return []


def correlations(program: ir.Program, batch: int) -> list[Correlation]:
    """Everything one query draws, in order."""
    return [c for operation in protocols(program, batch, "bits") for c in operation.correlations()]


def kit_bytes(program: ir.Program, batch: int = 1) -> int:
    """Size of either party's kit, header and digest included."""
    body = sum(tensor.bytes for c in correlations(program, batch) for tensor in tensors(c))
    return HEADER_BYTES + body + TAG_BYTES


def kit_layout(program: ir.Program, batch: int) -> bytes:
    """What a kit's header says of its contents."""
    items = [
        Item(f"{c.label}/{number}", "share", part.count, part.bits)
        for c in correlations(program, batch)
        for number, part in enumerate(tensors(c))
    ]
    return layout(items)


def write_kit(program: ir.Program, header: Header, results: Results) -> bytes:
    """A whole kit from the results of every correlation that keeps something."""
    sink = io.BytesIO()
    writer = KitWriter(sink, header)
    for c in correlations(program, header.batch):
        for tensor, values in zip(tensors(c), results.get(c.label, []), strict=True):
            if values.size != tensor.count:
                raise MaterialError(f"{c.label}: {values.size} elements made where the kit holds {tensor.count}")
            writer.section(_native.pack(np.ascontiguousarray(values).reshape(-1), tensor.bits).data)
    writer.finish()
    return sink.getvalue()


class OwnRandomness:
    """What a party expands from its seed alone."""

    def __init__(self, seed: bytes, party: int) -> None:
        self._seed, self.party = seed, party

    def words(self, label: str, count: int, bits: int = 64) -> np.ndarray:
        return stream(self._seed, label, (count,), bits)

    def triple_bits(self, c: verbs.BitTriples) -> tuple[np.ndarray, np.ndarray]:
        """This party's shares of a and b."""
        return self.words(f"{c.label}/a", c.count), self.words(f"{c.label}/b", c.count)

    def selecting_bits(self, c: verbs.Selection) -> np.ndarray:
        """This party's share of δ, as planes (points, words)."""
        return self.words(f"{c.label}/delta", c.points * ((c.count + 63) // 64)).reshape(c.points, -1)

    def truncate(self, c: verbs.Truncation, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A truncation without wrap bit."""
        share = truncate(r, self.party, c.open_bits, c.shift, c.bits)
        return share, np.zeros_like(share)


class TwoPartySource(QuerySource):
    """One party's correlations of one query, from its kit."""

    rounding = ROUNDING
    headroom = HEADROOM

    def __init__(self, program: ir.Program, header: Header, kit: bytes | memoryview, linear_error: int) -> None:
        self.kit_id, self.party, self.batch = header.kit_id, header.party, header.batch
        self.comparison, self.program_hash = header.comparison, header.program_hash
        self.linear_error = linear_error
        self._own, self._kit = OwnRandomness(header.seed, header.party), np.frombuffer(kit, np.uint8)
        self._offsets: dict[str, int] = {}
        offset = HEADER_BYTES
        for c in correlations(program, header.batch):
            self._offsets[c.label] = offset
            offset += sum(tensor.bytes for tensor in tensors(c))
        if offset + TAG_BYTES != self._kit.size or header.layout != kit_layout(program, header.batch):
            raise MaterialError(
                f"kit {header.kit_id.hex()}: {self._kit.size} bytes in another layout than the {offset + TAG_BYTES} "
                "bytes this release reads; run the same release of autorep on both servers, and prepare new kits"
            )

    def draw(self, correlation: Correlation, *operands: np.ndarray) -> Any:
        kept, c = self._take(correlation), correlation
        match c:
            case verbs.Mask():
                return self._own.words(c.label, c.count, c.bits)
            case verbs.Truncation():
                return (kept[0], kept[1]) if c.wrap_bits else self._own.truncate(c, operands[0])
            case verbs.Product():
                return kept[0].reshape(operands[0].shape)
            case verbs.LinearImage():
                return kept[0].reshape(-1, *c.op.shape)
            case verbs.Quadratic():
                return _quadratic(c, [values.reshape(self.batch, -1) for values in kept])
            case verbs.Bits():
                return kept[0].reshape(c.width, -1)
            case verbs.BitTriples():
                return (*self._own.triple_bits(c), kept[0])
            case verbs.Selection():
                shares = [values.reshape(c.points, c.count) for values in kept]
                wrap = shares[2] if c.wrap_bits else np.zeros((c.points, c.count), np.uint64)
                return SelectionShares(self._own.selecting_bits(c), shares[0], shares[1], wrap)
        raise MaterialError(f"{c.label}: no kit made by two servers holds {type(c).__name__}")

    def _take(self, c: Correlation) -> list[np.ndarray]:
        offset = self._offsets.pop(c.label, None)
        if offset is None:
            raise MaterialError(f"correlated randomness {c.label!r} was used already or is not in the inventory")
        found = []
        for tensor in tensors(c):
            found.append(_native.unpack(self._kit[offset : offset + tensor.bytes], tensor.count, tensor.bits))
            offset += tensor.bytes
        return found


def _quadratic(c: verbs.Quadratic, kept: list[np.ndarray]) -> QuadraticShares:
    """P and Q for c = 1 are kept whole; for c = 0 the products with m, to be added 2**k times."""
    p, q = kept[0], kept[1]
    if not c.wrap_bits:
        return QuadraticShares((p, p), (q, q))
    power, bits = U64(c.op.open_bits - c.shift), c.op.quad_open_bits
    p_other, q_other = (reduce(base + (part << power), bits) for base, part in zip((p, q), kept[2:]))
    return QuadraticShares((p_other, p), (q_other, q))
