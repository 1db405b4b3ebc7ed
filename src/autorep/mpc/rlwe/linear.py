"""The cross terms of a linear layer by encryption: each party ends with a share of W₁∗ρ₀ + W₀∗ρ₁.

Both directions run alike and at once. For the term of this party's weights and the peer's mask:

1. Peer → this party: Enc(ρ), packed as in `packing`, under the peer's key. 12.25 KB a ciphertext.
2. This party multiplies by its own weights, adds an encryption of zero under the peer's public key (so c₁ is a fresh
   ring-LWE sample whatever the weights are), rounds to `answer_bits` bits, subtracts a uniform mask from c₀ at the
   places of outputs, and sends c₁ and those places of c₀. The mask is its share.
3. Peer: c₀ + c₁·s is its share.

The shares add up to the term within the error that `packing` bounds. Flights: two for all layers of a program.
Who learns what: the evaluator sees ciphertexts only; the key's owner sees a fresh sample and uniform values.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autorep import _native
from autorep._native import rns
from autorep.mpc.prg import fresh_seed, stream
from autorep.mpc.ring import U64, low_bits, packed_bytes, reduce, shift_left
from autorep.mpc.rlwe.packing import Packing
from autorep.mpc.rlwe.parameters import (
    RESIDUE_BITS,
    PublicKey,
    SecretKey,
    expand,
    linear_ring,
    pack_polynomials,
    polynomial_bytes,
    unpack_polynomials,
)


class MaskOwner:
    """The key owner's part of one layer: encrypts its share of the mask, later decrypts its share of the term."""

    def __init__(self, packing: Packing, key: SecretKey) -> None:
        self._packing, self._key = packing, key
        self._places, self._sources = packing.input_places()
        self._outputs = packing.output_places()

    def request(self, rho: np.ndarray, seed: bytes) -> np.ndarray:
        """Step 1: the ciphertexts (packed bytes) of masks (images, *in_shape)."""
        packing, ring = self._packing, linear_ring()
        images, bits = len(rho), packing.layer.ring_bits
        plain = np.zeros((images, packing.digits, packing.bands * packing.chunks * ring.n), np.uint64)
        values = rho.reshape(images, -1)[:, self._sources] << U64(64 - bits)
        for digit in range(packing.digits):
            plain[:, digit, self._places] = shift_left(values, digit * packing.digit_bits)
        return pack_polynomials(self._key.encrypt(_scaled(ring, plain.reshape(-1, ring.n)), seed, packing.layer.name))

    def finish(self, answer: np.ndarray, images: int) -> np.ndarray:
        """Step 3: this party's share (images, outputs, rows, columns) modulo the layer's ring."""
        packing, ring = self._packing, linear_ring()
        bits, count = packing.answer_bits, images * packing.answers
        split = packed_bytes(count * ring.n, bits)
        c1 = _native.unpack(answer[:split], count * ring.n, bits).reshape(count, ring.n)
        c0 = _native.unpack(answer[split:], images * self._outputs.size, bits).reshape(images, -1)
        centred = (c1 << U64(64 - bits)).view(np.int64) >> np.int64(64 - bits)
        residues = ring.small(centred) if bits <= RESIDUE_BITS else ring.residues(centred)
        low, _ = ring.combine(self._key.times_secret(residues))
        at_outputs = low.reshape(images, -1)[:, self._outputs.reshape(-1)]
        return _to_ring(packing, reduce(c0 + at_outputs, bits)).reshape(images, *self._outputs.shape)


class WeightOwner:
    """The evaluator's part of one layer. `weight`: its share of the weights."""

    def __init__(self, packing: Packing, weight: np.ndarray) -> None:
        self._packing = packing
        self._weight = reduce(weight.reshape(-1), packing.layer.ring_bits)
        self._outputs = packing.output_places()
        self._first_places: tuple[np.ndarray, np.ndarray] | None = None

    def answer(self, data: np.ndarray, seed: bytes, images: int, public: PublicKey) -> tuple[np.ndarray, np.ndarray]:
        """Step 2: the packed answer, and this party's share (images, outputs, rows, columns)."""
        packing, ring = self._packing, linear_ring()
        columns = self._columns(data, seed, images)
        c1 = np.empty((images, packing.bands, packing.groups, ring.n), np.uint64)
        c0 = np.empty_like(c1)
        at_once = 4 if packing.layer.groups == 1 else 1  # groups of outputs that read the same chunks
        for first in range(0, packing.groups, at_once):
            groups = range(first, min(first + at_once, packing.groups))
            chunks = packing.chunks_of(first)
            used = columns if len(chunks) == packing.chunks else np.ascontiguousarray(columns[:, :, chunks])
            primes, digits, count, *_ = used.shape
            weights = np.stack([self._weights(group, len(chunks)) for group in groups], axis=1)
            product = ring.dots(weights, used.reshape(primes, digits * count, -1, ring.n))
            rounded = _private(public, product.reshape(primes, -1, ring.n), packing.answer_bits)
            for group, parts in zip(groups, rounded.reshape(len(groups), images, packing.bands, 2, ring.n)):
                c0[:, :, group], c1[:, :, group] = parts[:, :, 0], parts[:, :, 1]
        bits = packing.answer_bits
        needed = c0.reshape(images, -1)[:, self._outputs.reshape(-1)]
        mask = stream(fresh_seed(), f"{packing.layer.name}/answer", needed.shape, bits)
        packed = [_native.pack(c1.reshape(-1), bits), _native.pack((needed - mask).reshape(-1), bits)]
        return np.concatenate(packed), _to_ring(packing, mask).reshape(images, *self._outputs.shape)

    def _columns(self, data: np.ndarray, seed: bytes, images: int) -> np.ndarray:
        """The request as (primes, digits, chunks, images·bands·2, n)."""
        packing, ring = self._packing, linear_ring()
        total = images * packing.requests
        c0, c1 = unpack_polynomials(ring, data, total), expand(ring, seed, packing.layer.name, total)
        shape = (len(ring.primes), images, packing.digits, packing.bands, packing.chunks, ring.n)
        both = np.stack(
            [c0.reshape(shape), c1.reshape(shape)], axis=4
        )  # primes, images, digits, bands, part, chunks, n
        moved = np.ascontiguousarray(both.transpose(0, 2, 5, 1, 3, 4, 6))
        return moved.reshape(len(ring.primes), packing.digits, packing.chunks, -1, ring.n)

    def _places(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """`weight_places`; whole groups that read every chunk differ only in where their weights begin."""
        packing = self._packing
        if packing.layer.groups > 1 or (group + 1) * packing.v > packing.layer.outputs:
            return packing.weight_places(group)
        if self._first_places is None:
            self._first_places = packing.weight_places(0)
        places, sources = self._first_places
        return places, sources + group * packing.v * (self._weight.size // packing.layer.outputs)

    def _weights(self, group: int, chunks: int) -> np.ndarray:
        """The transformed weight polynomials (primes, digits·chunks, n) of one group of outputs."""
        packing, ring = self._packing, linear_ring()
        places, sources = self._places(group)
        plain = np.zeros((packing.digits, chunks * ring.n), np.int64)
        for digit, values in enumerate(_digits(self._weight[sources], packing)):
            plain[digit, places] = values
        return ring.forward(ring.small(plain.reshape(-1, ring.n)))


def request_bytes(packing: Packing, images: int) -> int:
    """Bytes of step 1, without the seed that all layers share."""
    return polynomial_bytes(linear_ring(), images * packing.requests)


def _scaled(ring: rns.Ring, plain: np.ndarray) -> np.ndarray:
    """Residues of round(q·m / 2**64) for words m: (q·m − (q·m mod 2**64)) / 2**64, and q is 0 modulo each prime."""
    remainder = (U64(ring.modulus % 2**64) * plain).view(np.int64)
    return ring.residues(remainder, -pow(2**64, -1, ring.modulus))


def _digits(weights: np.ndarray, packing: Packing) -> Iterator[np.ndarray]:
    """Signed digits of ring elements, least significant first; the last takes the sign."""
    bits = packing.layer.ring_bits
    rest = (weights << U64(64 - bits)).view(np.int64) >> np.int64(64 - bits)
    for digit in range(packing.digits):
        if digit == packing.digits - 1:
            yield rest
            return
        shift = np.int64(64 - packing.digit_bits)
        low = (rest << shift) >> shift
        yield low
        rest = (rest >> np.int64(packing.digit_bits)) + ((low < 0).astype(np.int64))


def _private(public: PublicKey, product: np.ndarray, bits: int) -> np.ndarray:
    """Products (primes, columns of c₀ and c₁ in turn, n), made fresh samples and rounded: words (columns, n)."""
    ring, count = public.ring, product.shape[1] // 2
    zero0, zero1 = public.zeros(count)
    ring.add(product, np.ascontiguousarray(np.stack([zero0, zero1], axis=2)).reshape(product.shape))
    ring.inverse(product)
    ring.residues(public.noise(2 * count), into=product)
    return ring.fraction(product, bits)[0] & low_bits(bits)


def _to_ring(packing: Packing, share: np.ndarray) -> np.ndarray:
    """A share modulo 2**answer_bits as one modulo the ring: the low bits are unknown, or rounded away."""
    surplus = packing.answer_bits - packing.layer.ring_bits
    return share >> U64(surplus) if surplus >= 0 else share << U64(-surplus)
