"""What one query sends and consumes, computed from the Program alone.

Party, dealer and cost model all read this one description, so the ledger, the kits and the estimate agree exactly.

* A `Round` is one full-duplex exchange between the servers: a few packed tensors in one frame each way.
* An `Item` is one tensor of correlated randomness. `mask`: each party expands its own share from its seed (nothing
  is sent). `share` and `xor`: P0 expands its share, P1 receives the difference. `keys`: both receive the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autorep.mpc import compare_bits, compare_dcf
from autorep.mpc.ring import packed_bytes
from autorep.mpc.shapes import SignBatch, tournament
from autorep.program import ir

ComparisonName = Literal["dcf", "bits"]
COMPARISONS = {"dcf": compare_dcf, "bits": compare_bits}


@dataclass(frozen=True)
class Part:
    """`count` ring elements of `bits` bits, packed."""

    count: int
    bits: int

    @property
    def bytes(self) -> int:
        return packed_bytes(self.count, self.bits)


@dataclass(frozen=True)
class Round:
    """One exchange: what each party sends (and receives)."""

    label: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """Payload each party sends, without the frame header."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class Item:
    """One tensor of correlated randomness."""

    label: str
    kind: Literal["mask", "share", "xor", "keys"]
    count: int
    bits: int

    def bytes_to(self, party: int) -> int:
        """Bytes the dealer sends to a party besides its seed."""
        sent = self.kind == "keys" or (party == 1 and self.kind in ("share", "xor"))
        return packed_bytes(self.count, self.bits) if sent else 0


def comparison_of(op: ir.Activation, batch: int) -> SignBatch:
    """The comparisons of an activation's kept elements, at every knot."""
    shift = op.in_frac - op.kept_frac
    return SignBatch(
        label=f"{op.name}/kept",
        count=batch * op.kept_count,
        window=op.window,
        bits=op.bits,
        wrap_bits=wrap_bits(op.bits, op.open_bits, shift),
        points=len(op.knots),
    )


def wrap_bits(bits: int, open_bits: int, shift: int) -> int:
    """Ring in which the wrap bit m of a mask enters a result known mod 2**bits (as m·2**(open_bits − shift))."""
    return max(0, bits - (open_bits - shift))


def rounds(op: ir.Op, batch: int = 1, comparison: ComparisonName = "dcf") -> Iterator[Round]:
    """The exchanges of one operation, in order."""
    size = batch * op.size
    match op:
        case ir.Input():
            yield Round(f"{op.name}/open", (Part(size, op.bits),))
        case ir.Requantize():
            yield Round(f"{op.name}/a", (Part(size, op.open_bits),))
            if not op.one_round:
                yield Round(f"{op.name}/b", (Part(size, op.bits),))
        case ir.Activation():
            yield Round(f"{op.name}/a", (Part(size, op.open_bits),))
            if op.kept_count:
                for label, words in COMPARISONS[comparison].round_words(comparison_of(op, batch)):
                    yield Round(label, (Part(words, 64),))
            kept, quad = batch * op.kept_count, batch * op.quad_count
            parts = (Part(quad, op.quad_open_bits), Part(kept, op.bits))
            yield Round(f"{op.name}/b", tuple(part for part in parts if part.count))
        case ir.MaxPool():
            for level in tournament(op, batch):
                for label, words in COMPARISONS[comparison].round_words(level.comparison):
                    yield Round(label, (Part(words, 64),))
                yield Round(f"{level.comparison.label}/open", (Part(level.comparison.count, op.bits),))


def items(op: ir.Op, batch: int = 1, comparison: ComparisonName = "dcf") -> Iterator[Item]:
    """The correlated randomness of one operation, in the order in which the dealer writes it."""
    size = batch * op.size
    name = op.name
    match op:
        case ir.Input():
            yield Item(f"{name}/mask", "mask", size, op.bits)
        case ir.Conv() | ir.Linear() | ir.Affine() | ir.Product():
            yield Item(f"{name}/cross", "share", size, op.bits)
        case ir.Requantize():
            yield Item(f"{name}/r", "mask", size, op.open_bits)
            yield Item(f"{name}/R", "share", size, op.bits)
            if not op.one_round:
                wrap = wrap_bits(op.bits, op.open_bits, op.shift)
                if wrap:
                    yield Item(f"{name}/m", "share", size, wrap)
                yield Item(f"{name}/z", "mask", size, op.bits)
        case ir.Activation():
            yield Item(f"{name}/r", "mask", size, op.open_bits)
            yield from _quadratic_items(op, batch)
            yield from _kept_items(op, batch, comparison)
        case ir.MaxPool():
            for level in tournament(op, batch):
                yield from _comparison_items(level.comparison, comparison)
                yield Item(f"{level.comparison.label}/z", "mask", level.comparison.count, op.bits)


def _quadratic_items(op: ir.Activation, batch: int) -> Iterator[Item]:
    count, name = batch * op.quad_count, op.name
    if not count:
        return
    full = op.quad_open_bits
    wrap = wrap_bits(full, op.open_bits, op.in_frac - op.quad_frac)
    for value in QUADRATIC_FULL:
        yield Item(f"{name}/quad/{value}", "share", count, full)
    for value in QUADRATIC_WRAP if wrap else ():
        yield Item(f"{name}/quad/{value}", "share", count, wrap)
    yield Item(f"{name}/quad/z", "mask", count, full)
    yield Item(f"{name}/quad/Z", "share", count, op.bits)


# The dealer's values for a quadratic; `activation.deal` says what each is.
QUADRATIC_FULL = ("R", "aR", "RR", "Q")
QUADRATIC_WRAP = ("m", "am", "Rm", "Qm")


def _kept_items(op: ir.Activation, batch: int, comparison: ComparisonName) -> Iterator[Item]:
    if not op.kept_count:
        return
    spec = comparison_of(op, batch)
    yield Item(f"{spec.label}/R", "share", spec.count, spec.bits)
    if spec.wrap_bits:
        yield Item(f"{spec.label}/m", "share", spec.count, spec.wrap_bits)
    yield from _comparison_items(spec, comparison)
    yield Item(f"{spec.label}/z", "mask", spec.count, spec.bits)


def _comparison_items(spec: SignBatch, comparison: ComparisonName) -> Iterator[Item]:
    for label, kind, count, bits in COMPARISONS[comparison].items(spec):
        yield Item(label, kind, count, bits)


def program_items(program: ir.Program, batch: int, comparison: ComparisonName) -> list[Item]:
    """Everything one query of `batch` images consumes."""
    return [item for op in program.ops for item in items(op, batch, comparison)]


def multiplications(op: ir.Op, in_shape: tuple[int, ...], batch: int = 1) -> int:
    """Ring multiplications each party does online (direct algorithm) for an operation that reads `in_shape`."""
    match op:
        case ir.Conv():
            return batch * op.size * op.kernel[0] * op.kernel[1] * in_shape[0] // op.groups
        case ir.Linear():
            return batch * op.size * in_shape[0]
        case ir.Affine():
            return batch * op.size
        case ir.Product():
            return 3 * batch * op.size
        case ir.Activation():
            return batch * (4 * op.quad_count + len(op.knots) * op.kept_count)
    return 0
