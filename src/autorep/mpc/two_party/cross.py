"""Products of secrets that neither party knows whole: linear layers and quadratics, by transfers alone or by ring-LWE.

Both ways give the same: shares of W₀∗ρ₁ + W₁∗ρ₀ of every linear layer, and of P = a·ρ and Q = ρ·(P − b) of every
quadratic, ρ given as shares modulo the way's own `ring`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autorep.errors import ConfigError
from autorep.mpc.ot.extension import Modulus, Transfers, power
from autorep.mpc.ot.tools import BitTools
from autorep.mpc.prg import SEED_BYTES, fresh_seed
from autorep.mpc.ring import U64
from autorep.mpc.rlwe import linear as lattice
from autorep.mpc.rlwe import slots
from autorep.mpc.rlwe.packing import Layer, Packing, pack
from autorep.mpc.rlwe.parameters import (
    SecretKey,
    linear_ring,
    public_key_bytes,
    read_public_key,
    slot_ring,
)
from autorep.mpc.transport import Transport

WORD = power(64)


@dataclass(frozen=True)
class Weights:
    """One linear layer and this party's share of its weight."""

    layer: Layer
    share: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Coefficients:
    """This party's shares of a and b (64 bits) of every quadratic of one image, in program order."""

    a: np.ndarray = field(repr=False)
    b: np.ndarray = field(repr=False)


class Cross(ABC):
    """One party's end of one way. `ring`: of the ρ that `quadratics` takes."""

    ring: Modulus

    def __init__(self, party: int, link: Transport) -> None:
        self.party, self.link = party, link
        self.tools = BitTools(party, Transfers(link))

    def load(self, layers: Mapping[str, Weights], coefficients: Coefficients) -> None:
        """Once per model."""
        self._layers, self._coefficients = dict(layers), coefficients

    @abstractmethod
    def linear(self, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Layer name -> mask shares (images, *in_shape), to shares (images, outputs, rows, columns) of the terms."""

    @abstractmethod
    def quadratics(self, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shares of P and Q modulo 2**64 from shares (images, quadratics) of ρ modulo `ring`."""

    @staticmethod
    @abstractmethod
    def linear_error(layers: Sequence[Layer]) -> int:
        """Largest deviation of a term, in units of its ring."""


class TransferCross(Cross):
    """By oblivious transfer alone, bit by bit (Gilboa): exact, and right for small networks."""

    ring = WORD

    def linear(self, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: self._layer(self._layers[name], rho) for name, rho in masks.items()}

    def _layer(self, weights: Weights, rho: np.ndarray) -> np.ndarray:
        layer = weights.layer
        columns = _columns(layer, rho)  # (channels, taps, images·positions)
        per_group, outs = layer.channels // layer.groups, layer.outputs // layer.groups
        matrix = weights.share.reshape(layer.outputs, -1, 1)
        parts = [
            self.tools.matrix_products(
                f"{layer.name}/{group}",
                columns[group * per_group : (group + 1) * per_group].reshape(-1, columns.shape[-1]),
                matrix[group * outs : (group + 1) * outs],
                layer.ring_bits,
            )
            for group in range(layer.groups)
        ]
        return np.concatenate(parts).reshape(layer.outputs, len(rho), *layer.out_side).transpose(1, 0, 2, 3)

    def quadratics(self, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, b = (np.broadcast_to(value, rho.shape) for value in (self._coefficients.a, self._coefficients.b))
        p = self.tools.products("quadratic/p", a, rho, 64).reshape(rho.shape)
        return p, self.tools.products("quadratic/q", rho, p - b, 64).reshape(rho.shape)

    @staticmethod
    def linear_error(layers: Sequence[Layer]) -> int:
        return 0


def _columns(layer: Layer, rho: np.ndarray) -> np.ndarray:
    """Every value under every tap, zero in the padding: (channels, taps, images·positions)."""
    images = rho.reshape(len(rho), layer.channels, *layer.side)
    (top, left), (rows, cols) = layer.padding, layer.out_side
    padded = np.pad(images, ((0, 0), (0, 0), (top, top), (left, left)))
    taps = []
    for i in range(layer.kernel[0]):
        for j in range(layer.kernel[1]):
            y, x = i * layer.dilation[0], j * layer.dilation[1]
            window = padded[:, :, y : y + layer.stride[0] * rows : layer.stride[0]]
            taps.append(window[:, :, :rows, x : x + layer.stride[1] * cols : layer.stride[1]][..., :cols])
    return np.ascontiguousarray(np.stack(taps).transpose(2, 0, 1, 3, 4)).reshape(layer.channels, len(taps), -1)


class LatticeCross(Cross):
    """By ring-LWE: linear layers packed in coefficients, quadratics in slots modulo t, lifted to 64 bits by transfers.

    Setting up: each party's public keys for linear layers and for slots; then, per model, a and b modulo t and each
    party's encryption of its share of a.
    """

    ring = slots.MODULUS

    def __init__(self, party: int, link: Transport) -> None:
        super().__init__(party, link)
        self._key = SecretKey(linear_ring())
        own = self._key.public()
        self._peer = read_public_key(linear_ring(), link.exchange("keys/linear", own, public_key_bytes(linear_ring())))
        slot_key = SecretKey(slot_ring())
        theirs = link.exchange("keys/slots", slot_key.public(), public_key_bytes(slot_ring()))
        self._holder = slots.KeyHolder(slot_key)
        self._evaluator = slots.Evaluator(read_public_key(slot_ring(), theirs))

    def load(self, layers: Mapping[str, Weights], coefficients: Coefficients) -> None:
        super().load(layers, coefficients)
        self._owners: dict[str, tuple[Packing, lattice.MaskOwner, lattice.WeightOwner]] = {}
        for name, weights in layers.items():
            packing = pack(weights.layer)
            owners = lattice.MaskOwner(packing, self._key), lattice.WeightOwner(packing, weights.share)
            self._owners[name] = (packing, *owners)
        self._count = coefficients.a.size
        if not self._count:
            return
        self._a, self._b = (
            self.lift(f"model/{name}", value, WORD, self.ring)
            for name, value in (("a", coefficients.a), ("b", coefficients.b))
        )
        whole = self._blocks(self._a[None])  # for whichever image and half
        self._a_factor = self._encrypted("model/a/encrypted", whole, slice(0, len(whole)), slice(0, len(whole)))

    def linear(self, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        seed, shares = fresh_seed(), {}
        requests = (self._owners[name][1].request(rho, seed) for name, rho in masks.items())
        payload = np.concatenate([np.frombuffer(seed, np.uint8), *requests])
        received = np.frombuffer(self.link.exchange("linear/request", payload.data, payload.nbytes), np.uint8)
        peer_seed, offset = received[:SEED_BYTES].tobytes(), SEED_BYTES
        for name, rho in masks.items():
            packing, mask_owner, weight_owner = self._owners[name]
            images = len(rho)
            length = lattice.request_bytes(packing, images)
            request = received[offset : offset + length]
            offset += length
            answer, share = weight_owner.answer(request, peer_seed, images, self._peer)
            theirs = self.link.exchange(f"{name}/answer", answer.data, packing.answer_bytes(images))
            shares[name] = share + mask_owner.finish(np.frombuffer(theirs, np.uint8), images)
        return shares

    def quadratics(self, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images, t = len(rho), self.ring
        factor = self._factor("quadratic/rho", rho)
        p = self._product("quadratic/p", (rho, factor), (self._tiled(self._a, images), self._a_factor))
        difference = t.reduce(p + t.negative(self._tiled(self._b, images)))
        second = self._factor("quadratic/difference", difference)
        q = self._product("quadratic/q", (rho, factor), (difference, second))
        return self.lift("quadratic/p/lift", p, t, WORD), self.lift("quadratic/q/lift", q, t, WORD)

    def _product(
        self, label: str, x: tuple[np.ndarray, slots.Factor], y: tuple[np.ndarray, slots.Factor]
    ) -> np.ndarray:
        """Share of x·y modulo t: the cross terms in slots, the own product alone."""
        images, blocks = len(x[0]), slots.blocks_of(self._count)
        held, evaluated = self._halves(images * blocks)
        mixed = np.empty((images * blocks, slots.SLOTS), np.uint64)
        answers = [np.empty(0, np.uint8)]
        for part in slots.chunks(evaluated):
            answer, mixed[part] = self._evaluator.answer(x[1].part(part), y[1].part(part))
            answers.append(answer)
        theirs = self.link.exchange(label, np.concatenate(answers).data, slots.answer_bytes(held.stop - held.start))
        data, offset = np.frombuffer(theirs, np.uint8), 0
        for part in slots.chunks(held):
            count = part.stop - part.start
            mixed[part] = self._holder.decrypt(data[offset : offset + slots.answer_bytes(count)], count)
            offset += slots.answer_bytes(count)
        mixed = mixed.reshape(images, -1)[:, : self._count]
        return self.ring.reduce(mixed + self.ring.times(x[0], y[0]))

    def _factor(self, label: str, values: np.ndarray) -> slots.Factor:
        """Shares (images, count) as factors of products, each party's half encrypted for the other."""
        blocks = self._blocks(values)
        return self._encrypted(label, blocks, *self._halves(len(blocks)))

    def _halves(self, blocks: int) -> tuple[slice, slice]:
        """Of which this party holds the key, and which it evaluates."""
        first, second = slots.halves(blocks)
        return (first, second) if self.party == 0 else (second, first)

    def _encrypted(self, label: str, blocks: np.ndarray, held: slice, evaluated: slice) -> slots.Factor:
        """The peer's encryptions of its shares of the blocks to evaluate, for the own ones of those it evaluates."""
        seed, own = fresh_seed(), blocks[evaluated]
        data = np.concatenate([np.frombuffer(seed, np.uint8), self._holder.encrypt(blocks[held], seed, label)])
        theirs = self.link.exchange(label, data.data, SEED_BYTES + slots.request_bytes(len(own)))
        received = np.frombuffer(theirs, np.uint8)
        return slots.Factor.read(received[SEED_BYTES:], received[:SEED_BYTES].tobytes(), label, own, evaluated.start)

    def _blocks(self, values: np.ndarray) -> np.ndarray:
        """(images, count) as (images·blocks, SLOTS), filled up with zeros."""
        per_image = slots.blocks_of(self._count) * slots.SLOTS
        out = np.zeros((len(values), per_image), np.uint64)
        out[:, : self._count] = values
        return out.reshape(-1, slots.SLOTS)

    def _tiled(self, values: np.ndarray, images: int) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(values, (images, values.size)))

    def lift(self, label: str, share: np.ndarray, source: Modulus, target: Modulus) -> np.ndarray:
        """Shares modulo `source` of numbers below a quarter of it in magnitude, as shares modulo `target`.

        With a quarter added, x₀ + x₁ wraps exactly when one of them is in the upper half: 1 − n₀·n₁, nᵢ the own bit
        "in the lower half". One transfer.
        """
        quarter, half = source.value // 4, (source.value + 1) // 2
        shape, mine = share.shape, share.reshape(-1)
        if self.party == 0:
            mine = source.reduce(mine + U64(quarter))
        lower = (mine < U64(half)).astype(np.uint64)
        wrapped = target.reduce_word(U64(source.value % target.value) * lower) if self.party == 0 else lower
        product = self.tools.private_product(label, wrapped, [target])[0]
        residue = target.reduce_word(mine)
        if self.party == 0:
            constant = (quarter + source.value) % target.value
            residue = target.reduce(residue + target.negative(np.full_like(residue, constant)))
        return target.reduce(residue + product).reshape(shape)

    @staticmethod
    def linear_error(layers: Sequence[Layer]) -> int:
        return math.ceil(7 * max((pack(layer).deviation for layer in layers), default=0.0)) + 1


WAYS: dict[str, type[Cross]] = {"two-party": LatticeCross, "ot": TransferCross}


def way(name: str) -> type[Cross]:
    """The way a preparation's name stands for."""
    if name not in WAYS:
        raise ConfigError(f"preparation {name!r}: valid between two servers are {', '.join(WAYS)}")
    return WAYS[name]
