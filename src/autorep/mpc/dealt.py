"""Correlations by a dealer: of every verb, the items its kits hold, how the dealer makes them, how a party reads them.

A dealer knows no parameter of the model. What a verb multiplies with a parameter W uses the *blinding*: once per
model the servers open F = W + B, B = B₀ + B₁ masks that the dealer knows. F is a one-time pad of W and serves every
query; W·x = F·x − B·x turns each product into one that each party does alone with F and one the dealer does with B.
What enters a value that is opened next is not sent at all: the dealer owes it (`verbs`), and reckons with another mask.

`Dealing` evaluates the verbs in the clear and writes; `KitSource` reads. `deal` returns the value in the clear where
it is a later operand, and nothing otherwise; `read` returns what the verb says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from autorep import _native
from autorep.errors import MaterialError
from autorep.mpc import verbs
from autorep.mpc.operations import Operation
from autorep.mpc.ring import U64, low_bits, reduce, zeros
from autorep.mpc.sizes import Item
from autorep.mpc.tape import DealerTape, PartyTape
from autorep.mpc.verbs import (
    BitKeyShares,
    Correlation,
    KeyShares,
    QuadraticShares,
    SelectionShares,
    SignKeyShares,
    Source,
)

Fixed = Mapping[str, Any]  # "<op>.<parameter>" -> packed B at the dealer; packed F at a server, of a weight −F


class Dealt(ABC):
    """One verb by a dealer; `items` are in the order in which they are written."""

    items: list[Item]
    owed: np.ndarray | None = None  # set by `deal`

    @abstractmethod
    def __init__(self, correlation: Any) -> None:
        """Lay out one correlation."""

    @abstractmethod
    def deal(self, tape: DealerTape, fixed: Fixed, *operands: Any) -> Any:
        """At the dealer, on values in the clear."""

    @abstractmethod
    def read(self, tape: PartyTape, fixed: Fixed, *operands: Any) -> Any:
        """At a party, on its shares."""


class Mask(Dealt):
    def __init__(self, c: verbs.Mask) -> None:
        self.items = [Item(c.label, "mask", c.count, c.bits)]

    def deal(self, tape: DealerTape, fixed: Fixed, owed: np.ndarray | None = None) -> np.ndarray:
        return tape.mask(self.items[0], owed)

    def read(self, tape: PartyTape, fixed: Fixed) -> np.ndarray:
        return tape.mask(self.items[0])


class Truncation(Dealt):
    """R = r >> shift and m = msb(r), exactly."""

    def __init__(self, c: verbs.Truncation) -> None:
        self._c = c
        self.items = [Item(f"{c.label}/R", "share", c.count, c.bits)]
        if c.wrap_bits:
            self.items.append(Item(f"{c.label}/m", "share", c.count, c.wrap_bits))

    def deal(self, tape: DealerTape, fixed: Fixed, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        truncated = r >> U64(self._c.shift), r >> U64(self._c.open_bits - 1)
        for item, value in zip(self.items, truncated):
            tape.share(item, value)
        return truncated

    def read(self, tape: PartyTape, fixed: Fixed, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shares = [tape.share(item) for item in self.items]
        return shares[0], shares[1] if self._c.wrap_bits else zeros(self._c.count)


class Product(Dealt):
    """Owed as a whole where it may be."""

    def __init__(self, c: verbs.Product) -> None:
        self.items = [] if c.opened else [Item(c.label, "share", c.count, c.bits)]

    def deal(self, tape: DealerTape, fixed: Fixed, rho: np.ndarray, gamma: np.ndarray) -> None:
        self.owed = tape.share_or_owe(self.items, rho * gamma)

    def read(self, tape: PartyTape, fixed: Fixed, rho: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        return tape.share(self.items[0]).reshape(rho.shape) if self.items else np.zeros_like(rho)


class LinearImage(Dealt):
    """−W∗ρ = C − F∗ρ with C = B∗ρ: each party does its part of F∗ρ; C is owed where it may be, and otherwise dealt."""

    def __init__(self, c: verbs.LinearImage) -> None:
        self._c = c
        self.items = [] if c.opened else [Item(c.label, "share", c.count, c.op.bits)]

    def deal(self, tape: DealerTape, fixed: Fixed, rho: np.ndarray) -> None:
        self.owed = tape.share_or_owe(self.items, fixed[f"{self._c.op.name}.weight"](rho))

    def read(self, tape: PartyTape, fixed: Fixed, rho: np.ndarray) -> np.ndarray:
        image: np.ndarray = fixed[f"{self._c.op.name}.weight"](rho)
        if self.items:
            image += tape.share(self.items[0]).reshape(image.shape)
        return image


class Quadratic(Dealt):
    """With  = a + α and B̂ = b + β opened, R, αR, R² are dealt, and m, αm, Rm, α(2Rm − m·2**k) − βm; βR − αR² is owed.

    To P1 per element: 3·quad_open_bits + 4·(quad_open_bits − k) bits.
    """

    def __init__(self, c: verbs.Quadratic) -> None:
        self._c, full = c, c.op.quad_open_bits
        self._names = f"{c.op.name}.a", f"{c.op.name}.b"
        self.items = [Item(f"{c.label}/{value}", "share", c.count, full) for value in ("R", "aR", "RR")]
        if c.wrap_bits:
            self.items += [Item(f"{c.label}/{v}", "share", c.count, c.wrap_bits) for v in ("m", "am", "Rm", "Qm")]

    def deal(self, tape: DealerTape, fixed: Fixed, r: np.ndarray) -> None:
        c, (a, b) = self._c, self._names
        differences, self.owed = _native.quadratic_differences(
            _native.gather(r, c.op.quad_index), tape.writing(self.items), [item.bits for item in self.items],
            c.op.quad_index, c.per_channel, fixed[a], fixed[b], c.op.open_bits, c.shift,
        )  # fmt: skip
        tape.write(differences)

    def read(self, tape: PartyTape, fixed: Fixed, r: np.ndarray) -> QuadraticShares:
        c, (a, b) = self._c, self._names
        p0, p1, q0, q1 = _native.quadratic_material(
            tape.shares(self.items), [item.bits for item in self.items], (r.shape[0], c.op.quad_count), c.op.quad_index,
            c.per_channel, fixed[a], fixed[b], c.op.open_bits - c.shift,
        )  # fmt: skip
        return QuadraticShares((p0, p1), (q0, q1))


class Bits(Dealt):
    def __init__(self, c: verbs.Bits) -> None:
        self._c = c
        self.items = [Item(c.label, "xor", c.width * ((c.count + 63) // 64), 64)]

    def deal(self, tape: DealerTape, fixed: Fixed, big_r: np.ndarray) -> None:
        tape.xor(self.items[0], _native.bit_planes(big_r, self._c.width))

    def read(self, tape: PartyTape, fixed: Fixed, big_r: np.ndarray) -> np.ndarray:
        return tape.xor(self.items[0]).reshape(self._c.width, -1)


class BitTriples(Dealt):
    def __init__(self, c: verbs.BitTriples) -> None:
        self.items = [
            Item(f"{c.label}/a", "mask", c.count, 64),
            Item(f"{c.label}/b", "mask", c.count, 64),
            Item(f"{c.label}/c", "xor", c.count, 64),
        ]

    def deal(self, tape: DealerTape, fixed: Fixed) -> None:
        a, b, c = self.items
        tape.xor(c, tape.xor_mask(a) & tape.xor_mask(b))

    def read(self, tape: PartyTape, fixed: Fixed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a, b, c = self.items
        return tape.mask(a), tape.mask(b), tape.xor(c)


class _Products(Dealt):
    """Shares of a secret bit v of every element, and of v·R and v·m: what comparison protocols select with."""

    def __init__(self, letter: str, c: verbs.Selection | verbs.ComparisonKeys, count: int) -> None:
        self._products = [Item(f"{c.label}/{letter}{v}", "share", count, c.bits) for v in ("", "R")]
        if c.wrap_bits:
            self._products.append(Item(f"{c.label}/{letter}m", "share", count, c.wrap_bits))

    def _deal_products(self, tape: DealerTape, bits: np.ndarray, big_r: np.ndarray, wrap: np.ndarray) -> None:
        for item, value in zip(self._products, (bits, bits * big_r, bits * wrap)):
            tape.share(item, value)

    def _read_products(self, tape: PartyTape, shape: tuple[int, ...]) -> list[np.ndarray]:
        shares = [tape.share(item).reshape(shape) for item in self._products]
        return shares if len(shares) == 3 else [*shares, np.zeros(shape, np.uint64)]


class Selection(_Products):
    def __init__(self, c: verbs.Selection) -> None:
        super().__init__("d", c, c.points * c.count)
        self._c = c
        self.items = [Item(f"{c.label}/delta", "mask", c.points * ((c.count + 63) // 64), 64), *self._products]

    def deal(self, tape: DealerTape, fixed: Fixed, big_r: np.ndarray, wrap: np.ndarray) -> None:
        points, count = self._c.points, self._c.count
        planes = tape.xor_mask(self.items[0]).reshape(points, 1, -1)
        bits = np.concatenate([_native.from_bit_planes(plane, count) for plane in planes])
        self._deal_products(tape, bits, np.tile(big_r, points), np.tile(wrap, points))

    def read(self, tape: PartyTape, fixed: Fixed, big_r: np.ndarray, wrap: np.ndarray) -> SelectionShares:
        points, count = self._c.points, self._c.count
        planes = tape.mask(self.items[0]).reshape(points, -1)
        return SelectionShares(planes, *self._read_products(tape, (points, count)))


class ComparisonKeys(_Products):
    """Each party's root is its own stream; the keys, made from both roots, are the same bytes for both."""

    def __init__(self, c: verbs.ComparisonKeys) -> None:
        super().__init__("s", c, c.count)
        self._c = c
        key_bits = 8 * _native.dcf_key_bytes(c.window, c.bits, c.wrap_bits)
        self._root = Item(f"{c.label}/root", "mask", 2 * c.count, 64)
        self._keys = Item(f"{c.label}/keys", "keys", c.count, key_bits)
        self.items = [self._root, self._keys, *self._products]

    def deal(self, tape: DealerTape, fixed: Fixed, big_r: np.ndarray, wrap: np.ndarray) -> None:
        c = self._c
        window = big_r & low_bits(c.window + 1)
        sigma, alpha = window >> U64(c.window), window & low_bits(c.window)
        sign, rings = U64(1) - U64(2) * sigma, (c.bits, c.bits, c.wrap_bits)
        beta = np.stack([reduce(v, b) for v, b in zip((sign, sign * big_r, sign * wrap), rings)], axis=1)
        root0, root1 = (root.reshape(c.count, 2) for root in tape.own_streams(self._root))
        aes_keys = tape.aes_keys()
        keys = _native.dcf_gen(alpha, beta, c.window, c.bits, c.wrap_bits, root0, root1, aes_keys)
        tape.keys(self._keys, keys)
        self._deal_products(tape, sigma, big_r, wrap)

    def read(self, tape: PartyTape, fixed: Fixed, big_r: np.ndarray, wrap: np.ndarray) -> KeyShares:
        root, aes_keys = tape.mask(self._root).reshape(-1, 2), tape.aes_keys()
        keys = tape.keys(self._keys)
        return KeyShares(root, keys, aes_keys, *self._read_products(tape, (self._c.count,)))


class BitKeys(Dealt):
    """The kernel's payload is three numbers; the one that is wanted is the third, the others have one bit and are 0."""

    def __init__(self, c: verbs.BitKeys) -> None:
        self._c = c
        key_bits = 8 * _native.dcf_key_bytes(c.window, 1, c.bits)
        self._root = Item(f"{c.label}/root", "mask", 2 * c.count, 64)
        self._keys = Item(f"{c.label}/keys", "keys", c.count, key_bits)
        self._sigma = Item(f"{c.label}/s", "share", c.count, c.bits)
        self.items = [self._root, self._keys, self._sigma]

    def deal(self, tape: DealerTape, fixed: Fixed, big_r: np.ndarray) -> None:
        c = self._c
        window = big_r & low_bits(c.window + 1)
        sigma, alpha = window >> U64(c.window), window & low_bits(c.window)
        beta = np.zeros((c.count, 3), np.uint64)
        beta[:, 2] = reduce(U64(1) - U64(2) * sigma, c.bits)
        root0, root1 = (root.reshape(c.count, 2) for root in tape.own_streams(self._root))
        keys = _native.dcf_gen(alpha, beta, c.window, 1, c.bits, root0, root1, tape.aes_keys())
        tape.keys(self._keys, keys)
        tape.share(self._sigma, sigma)

    def read(self, tape: PartyTape, fixed: Fixed, big_r: np.ndarray) -> BitKeyShares:
        root, aes_keys = tape.mask(self._root).reshape(-1, 2), tape.aes_keys()
        keys = tape.keys(self._keys)
        return BitKeyShares(root, keys, aes_keys, tape.share(self._sigma))


class SignKeys(Dealt):
    """As `ComparisonKeys`, without products."""

    def __init__(self, c: verbs.SignKeys) -> None:
        self._c = c
        self._root = Item(f"{c.label}/root", "mask", 2 * c.count, 64)
        self._keys = Item(f"{c.label}/keys", "keys", c.count, 8 * _native.sign_key_bytes(c.window))
        self.items = [self._root, self._keys]

    def deal(self, tape: DealerTape, fixed: Fixed, big_r: np.ndarray) -> None:
        root0, root1 = (root.reshape(-1, 2) for root in tape.own_streams(self._root))
        tape.keys(self._keys, _native.sign_gen(big_r, self._c.window, root0, root1, tape.aes_keys()))

    def read(self, tape: PartyTape, fixed: Fixed, big_r: np.ndarray) -> SignKeyShares:
        return SignKeyShares(tape.mask(self._root).reshape(-1, 2), tape.keys(self._keys), tape.aes_keys())


DEALT: dict[type[Correlation], type[Dealt]] = {
    verbs.Mask: Mask,
    verbs.Truncation: Truncation,
    verbs.Product: Product,
    verbs.LinearImage: LinearImage,
    verbs.Quadratic: Quadratic,
    verbs.Bits: Bits,
    verbs.BitTriples: BitTriples,
    verbs.Selection: Selection,
    verbs.ComparisonKeys: ComparisonKeys,
    verbs.BitKeys: BitKeys,
    verbs.SignKeys: SignKeys,
}


def kit_items(operation: Operation) -> Iterable[Item]:
    """What an operation takes out of a dealt kit, in order."""
    for correlation in operation.correlations():
        yield from DEALT[type(correlation)](correlation).items


class Dealing(Source):
    """The dealer's walk: masks and truncations come back in the clear, everything is written to both kits."""

    def __init__(self, tape: DealerTape, fixed: Fixed) -> None:
        self._tape, self._fixed = tape, fixed
        self._owed: tuple[Correlation, np.ndarray | None] | None = None  # of the last draw

    def draw(self, correlation: Correlation, *operands: np.ndarray) -> Any:
        verb = DEALT[type(correlation)](correlation)
        result = verb.deal(self._tape, self._fixed, *operands)
        self._owed = correlation, verb.owed
        return result

    def owed(self, correlation: Correlation) -> np.ndarray | None:
        last, debt = self._owed or (None, None)
        if last is not correlation:
            raise MaterialError(f"{correlation.label}: what is owed of it is asked for right after it is drawn")
        self._owed = None
        return debt
