"""Products of shared numbers modulo t, 8,192 at a time, by encryption in slots.

t is a product of two 31-bit primes that are 1 modulo 2n, so a polynomial modulo t is 8,192 numbers. Of every block one
party, H, holds the key, and the other, E, evaluates. For shares x = x_H + x_E and y = y_H + y_E modulo t:

1. H → E: Enc(x_H), Enc(y_H), 98 KB each (a ciphertext may serve several products).
2. E: Enc(x_H)·y_E + Enc(y_H)·x_E, less an encryption of a uniform share modulo t, plus an encryption of zero under H's
   public key, plus uniform noise 60 bits above the product's own; rounded to 72 bits a coefficient, 144 KB back.
3. H decrypts its share of the cross terms; each party adds x_i·y_i of its own.

P0 is H of the first half of all blocks and P1 of the second (`halves`), so that both work at the same time, and a
flight carries both directions.
Exact: an error in one coefficient would spoil every slot, so `PHASE_ERROR` bounds it below q / 2t.
E sees ciphertexts only. H sees c₁, a fresh ring-LWE sample, and a phase that is its uniform share and noise that
hides the product's own within 2**−60.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from autorep import _native
from autorep._native import rns
from autorep.mpc.ot.extension import Modulus
from autorep.mpc.ring import U64, packed_bytes
from autorep.mpc.rlwe.parameters import (
    NOISE_DEVIATION,
    PublicKey,
    SecretKey,
    draw_key,
    expand,
    pack_polynomials,
    polynomial_bytes,
    slot_ring,
    unpack_polynomials,
)

T_PRIMES = (2147352577, 2147205121)
MODULUS = Modulus(T_PRIMES[0] * T_PRIMES[1])
SLOTS = 8192
CHUNK = 16  # blocks that are evaluated or decrypted together, and packed as one answer
ANSWER_BITS = 72
FLOOD_BITS = 131
_FLOOD_LIMBS = ((44, 0), (44, 44), (FLOOD_BITS - 88, 88))  # (bits, position)

# Two products of a fresh ciphertext and a plaintext below t/2, six deviations; and how far the phase then is from its
# multiple of 1/t, as a part of q. Half of 1/t would be wrong.
PRODUCT_NOISE = 6 * NOISE_DEVIATION * MODULUS.value / 12**0.5 * (2 * SLOTS) ** 0.5
ROUNDING = 6 * 2.0**-ANSWER_BITS * ((1 + 2 * SLOTS / 3) / 12) ** 0.5
PHASE_ERROR = (PRODUCT_NOISE + 2.0 ** (FLOOD_BITS - 1)) / 2.0**195.9 + ROUNDING


@cache
def _t_ring() -> rns.Ring:
    return rns.Ring(SLOTS, T_PRIMES)


def blocks_of(count: int) -> int:
    """Polynomials for `count` numbers."""
    return -(-count // SLOTS)


def halves(blocks: int) -> tuple[slice, slice]:
    """The blocks of which P0, and those of which P1, holds the key."""
    middle = blocks - blocks // 2
    return slice(0, middle), slice(middle, blocks)


def chunks(part: slice) -> list[slice]:
    """The blocks of one key, cut into what is answered together."""
    return [slice(start, min(start + CHUNK, part.stop)) for start in range(part.start, part.stop, CHUNK)]


def request_bytes(blocks: int) -> int:
    """Bytes of `blocks` fresh ciphertexts without their seed."""
    return polynomial_bytes(slot_ring(), blocks)


def answer_bytes(blocks: int) -> int:
    """Bytes of `blocks` answers."""
    return 2 * packed_bytes(blocks * SLOTS, ANSWER_BITS - 64) + 2 * packed_bytes(blocks * SLOTS, 64)


def _coefficients(values: np.ndarray, factor: int) -> np.ndarray:
    """Numbers modulo t (blocks, SLOTS) in slots, times a factor, as centred coefficients (int64)."""
    ring = _t_ring()
    residues = ring.inverse(ring.residues(values.view(np.int64), factor))
    return ring.combine(residues)[0].view(np.int64)


def _numbers(coefficients: np.ndarray) -> np.ndarray:
    """The numbers in the slots of polynomials modulo t (blocks, SLOTS)."""
    ring = _t_ring()
    centred = ring.combine(ring.forward(ring.residues(coefficients.view(np.int64))))[0].view(np.int64)
    return (centred + np.int64(MODULUS.value) * (centred < 0)).view(np.uint64)


def _scaled(values: np.ndarray) -> np.ndarray:
    """Residues modulo q of round(q·m / t), m the polynomials with these slots."""
    ring = slot_ring()
    return ring.residues(_coefficients(values, ring.modulus), -pow(MODULUS.value, -1, ring.modulus))


@dataclass(frozen=True)
class Factor:
    """Shared numbers as E has them: H's share encrypted (c₀, c₁), its own share as a plaintext, all transformed.

    `first` is the number of its first block; after the last one it starts again, as coefficients do image by image.
    """

    c0: np.ndarray = field(repr=False)
    c1: np.ndarray = field(repr=False)
    plain: np.ndarray = field(repr=False)
    first: int = 0

    @classmethod
    def read(cls, data: np.ndarray, seed: bytes, label: str, own: np.ndarray, first: int = 0) -> Factor:
        """From H's ciphertexts and the own numbers (blocks, SLOTS)."""
        ring, blocks = slot_ring(), len(own)
        plain = ring.forward(ring.residues(_coefficients(own, 1)))
        return cls(unpack_polynomials(ring, data, blocks), expand(ring, seed, label, blocks), plain, first)

    def part(self, blocks: slice) -> Factor:
        """Some blocks of it, by their numbers."""
        places = (np.arange(blocks.start, blocks.stop) - self.first) % self.c0.shape[1]
        c0, c1, plain = (np.ascontiguousarray(x[:, places]) for x in (self.c0, self.c1, self.plain))
        return Factor(c0, c1, plain, blocks.start)


class KeyHolder:
    """H's part."""

    def __init__(self, key: SecretKey) -> None:
        self._key = key

    def encrypt(self, values: np.ndarray, seed: bytes, label: str) -> np.ndarray:
        """Step 1: packed ciphertexts of numbers (blocks, SLOTS)."""
        return pack_polynomials(self._key.encrypt(_scaled(values), seed, label))

    def decrypt(self, answer: np.ndarray, blocks: int) -> np.ndarray:
        """Step 3: this party's share (blocks, SLOTS) of the cross terms."""
        count = blocks * SLOTS
        high, offset, words = ANSWER_BITS - 64, 0, []
        for bits in (64, high, 64, high):
            length = packed_bytes(count, bits)
            words.append(_native.unpack(answer[offset : offset + length], count, bits).reshape(blocks, SLOTS))
            offset += length
        c0_low, c0_high, c1_low, c1_high = words
        # c₁ as a centred number: 36 low bits and the signed rest; products by s need two primes only.
        low = (c1_low & U64((1 << 36) - 1)).view(np.int64)
        upper = (c1_low >> U64(36)) | (c1_high << U64(28))
        upper_signed = (upper << U64(28)).view(np.int64) >> np.int64(28)
        pair = _first_two()
        c1 = pair.residues(upper_signed, 1 << 36, into=pair.residues(low))
        product_low, product_high = pair.combine(self._key.times_secret(c1))
        total_low = product_low + c0_low
        carry = (total_low < c0_low).astype(np.uint64)
        total_high = (product_high + c0_high + carry) & U64((1 << high) - 1)
        return _numbers(rns.scale_fraction(total_low, total_high, ANSWER_BITS, MODULUS.value))


@cache
def _first_two() -> rns.Ring:
    return rns.Ring(SLOTS, slot_ring().primes[:2])


class Evaluator:
    """E's part."""

    def __init__(self, public: PublicKey) -> None:
        self._public = public

    def answer(self, x: Factor, y: Factor) -> tuple[np.ndarray, np.ndarray]:
        """Step 2: the packed answer and this party's share (blocks, SLOTS)."""
        ring, blocks = slot_ring(), x.plain.shape[1]
        zero0, zero1 = self._public.zeros(blocks)
        for part, cx, cy in ((zero0, x.c0, y.c0), (zero1, x.c1, y.c1)):
            ring.add(part, ring.multiply(cx, y.plain))
            ring.add(part, ring.multiply(cy, x.plain))
            ring.residues(self._public.noise(blocks), into=ring.inverse(part))
        share = rns.below(draw_key(), MODULUS.value, (blocks, SLOTS))
        ring.add(zero0, _scaled(MODULUS.negative(share)))
        _flood(ring, zero0)
        packed = []
        for part in (zero0, zero1):
            low, high = ring.fraction(part, ANSWER_BITS)
            packed += [_native.pack(low.reshape(-1), 64), _native.pack(high.reshape(-1), ANSWER_BITS - 64)]
        return np.concatenate(packed), share


def _flood(ring: rns.Ring, part: np.ndarray) -> None:
    """Add uniform noise of FLOOD_BITS bits, centred."""
    for bits, position in _FLOOD_LIMBS:
        limb = np.empty(part.shape[1:], np.uint64)
        _native.prg(draw_key(), limb, bits)
        ring.residues(limb.view(np.int64), 1 << position, into=part)
    ring.residues(np.ones(part.shape[1:], np.int64), -(1 << (FLOOD_BITS - 1)), into=part)
