"""Correlated randomness as verbs: every correlation an operation may ask for, declared by the relation it satisfies.

An operation declares correlations and passes each, with its operands, to `Source.draw`; how the values come about is
the source's affair. A dealer evaluates them in the clear (`dealt.Dealing`), a server reads what a dealer wrote
(`dealt.KitSource`), two servers may evaluate them between themselves. Operands and results are additive shares unless
said otherwise; the sum of both parties' results satisfies the relation. `draw` is called in program order, and:

* operands are masks, or what `Truncation` returned, or local linear combinations of these;
* apart from `Mask` and `Truncation`, no result is ever an operand: an evaluation between the servers may collect
  the calls of a whole program first and answer all of one kind together.

Whoever evaluates in the clear may **owe** part of a result that only ever is opened: leave it out of both shares and
tell it (`Source.owed`). The caller passes it on to the mask of that opening, which then is the parties' own randomness
less what is owed: as uniform as before, and nobody has to be sent anything. Parties' shares of such a value, and of
such a mask, add up only together, in the opening.

Notation: r is a mask mod 2**open_bits, k = open_bits − shift, and for a value |y| < 2**(open_bits − 2)
    ŷ = y + 2**(open_bits − 2) + r mod 2**open_bits,   T = (ŷ >> shift) − 2**(open_bits − 2 − shift),   c = 1 − msb(ŷ).
(R, m) is a **truncation** of r when T − R + c·m·2**k is y / 2**shift, rounded by less than the source's `rounding`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from autorep.program import ir


def wrap_bits(bits: int, open_bits: int, shift: int) -> int:
    """Ring in which the wrap bit m of a mask enters a result known mod 2**bits (as m·2**(open_bits − shift))."""
    return max(0, bits - (open_bits - shift))


@dataclass(frozen=True)
class Correlation:
    """`count` of something, for one tensor of one query; the label is used once in a program."""

    label: str
    count: int


@dataclass(frozen=True)
class Mask(Correlation):
    """draw() or, at whoever owes, draw(owed) -> r: uniform mod 2**bits, known to nobody."""

    bits: int


@dataclass(frozen=True)
class Truncation(Correlation):
    """draw(r) -> (R mod 2**bits, m mod 2**wrap_bits): a truncation of r. Where wrap_bits is 0, m is zeros.

    Then also, without the offset: (v + r >> shift) − R is v / 2**shift rounded, mod 2**bits, for every v.
    """

    open_bits: int
    shift: int
    bits: int

    @property
    def wrap_bits(self) -> int:
        return wrap_bits(self.bits, self.open_bits, self.shift)


@dataclass(frozen=True)
class Product(Correlation):
    """draw(ρ, γ) -> ρ·γ mod 2**bits, γ broadcast against ρ; may be owed where `opened`."""

    bits: int
    opened: bool = False


@dataclass(frozen=True)
class LinearImage(Correlation):
    """draw(ρ) -> −W∗ρ mod 2**op.bits, W the parameter "<op>.weight" of which each party has a share.

    Part of it may be owed where `opened`.
    """

    op: ir.Conv | ir.Linear | ir.Affine
    opened: bool


@dataclass(frozen=True)
class Quadratic(Correlation):
    """draw(r) -> QuadraticShares: products with the secret coefficients a, b, "<op>.a" and "<op>.b", of each channel.

    r is the mask of the whole layer, (batch, op.size), of which the elements at op.quad_index are taken. With (R, m) a
    truncation of r and ρ_c = R − c·m·2**k: P_c = a·ρ_c and Q_c = a·ρ_c² − b·ρ_c, for c = 0 and c = 1, all mod
    2**op.quad_open_bits; part of Q, the same for both, may be owed. `channels` says which channel each element of one
    image belongs to.
    """

    op: ir.Activation

    @property
    def per_channel(self) -> int:
        return self.op.size // self.op.shape[0]

    @property
    def channels(self) -> np.ndarray:
        return self.op.quad_index // self.per_channel

    @property
    def shift(self) -> int:
        return self.op.in_frac - self.op.quad_frac

    @property
    def wrap_bits(self) -> int:
        return wrap_bits(self.op.quad_open_bits, self.op.open_bits, self.shift)


class QuadraticShares(NamedTuple):
    """(batch, elements) each, for c = 0 and c = 1."""

    p: tuple[np.ndarray, np.ndarray]
    q: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Bits(Correlation):
    """draw(R) -> xor shares of the low `width` bits of R, as planes (width, words), 64 elements a word."""

    width: int


@dataclass(frozen=True)
class BitTriples(Correlation):
    """draw() -> (a, b, c): xor shares of `count` words of uniform bits a, b and of c = a & b."""


@dataclass(frozen=True)
class Selection(Correlation):
    """draw(R, m) -> SelectionShares, for `points` independent uniform bits δ of each element."""

    points: int
    bits: int
    wrap_bits: int


class SelectionShares(NamedTuple):
    """δ as xor-shared planes (points, words); δ and δ·R mod 2**bits, δ·m mod 2**wrap_bits, (points, count) each."""

    planes: np.ndarray
    delta: np.ndarray
    delta_r: np.ndarray
    delta_m: np.ndarray


@dataclass(frozen=True)
class ComparisonKeys(Correlation):
    """draw(R, m) -> KeyShares: a distributed comparison function of every element.

    With σ = bit `window` of R and α its bits below: root and keys evaluate at a public x to shares of
    (1 − 2σ)·(1, R, m)·[x < α], as `_native.dcf_eval` says. Needs somebody who knows R.
    """

    window: int
    bits: int
    wrap_bits: int


class KeyShares(NamedTuple):
    """DCF root, keys and their public AES keys; σ and σ·R mod 2**bits, σ·m mod 2**wrap_bits, (count,) each."""

    root: np.ndarray
    keys: np.ndarray
    aes_keys: bytes
    sigma: np.ndarray
    sigma_r: np.ndarray
    sigma_m: np.ndarray


@dataclass(frozen=True)
class BitKeys(Correlation):
    """draw(R) -> BitKeyShares: as ComparisonKeys, but a key pays out (1 − 2σ)·[x < α] alone, mod 2**bits."""

    window: int
    bits: int


class BitKeyShares(NamedTuple):
    """DCF root, keys and their public AES keys; σ mod 2**bits."""

    root: np.ndarray
    keys: np.ndarray
    aes_keys: bytes
    sigma: np.ndarray


@dataclass(frozen=True)
class SignKeys(Correlation):
    """draw(R) -> SignKeyShares: a short key of every element.

    Root and keys evaluate at a public x to xor shares of bit `window` of x − R, as `_native.sign_eval` says. Needs
    somebody who knows R.
    """

    window: int


class SignKeyShares(NamedTuple):
    """Root, keys and their public AES keys."""

    root: np.ndarray
    keys: np.ndarray
    aes_keys: bytes


class Source(ABC):
    """Evaluates the correlations of one query.

    Attributes:
        rounding: a truncation's (least, largest) T − R + c·m·2**k − ⌊y / 2**shift⌋.
        headroom: the part of |y| < 2**(open_bits − 2) for which that holds.
        linear_error: largest deviation of a `LinearImage` from its relation, in units of its ring.
    """

    rounding: tuple[int, int] = (0, 1)
    headroom: float = 1.0
    linear_error: int = 0

    @abstractmethod
    def draw(self, correlation: Correlation, *operands: np.ndarray) -> Any:
        """This party's part of one correlation, as its class says; each is drawn once."""

    def owed(self, correlation: Correlation) -> np.ndarray | None:
        """What the shares of a correlation just drawn lack, in the clear; None where they are whole, or at a party."""
        return None
