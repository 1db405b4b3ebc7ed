"""How long two servers take to make kits, before they do: counted work, at the speed of one core, and the link.

The counts are exact, as the protocol's packing and frames give them; the speeds are round figures of one AVX-512 core,
so seconds are an estimate. Recorded runs (`bench/results/pi`) have it beside what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autorep.mpc.rlwe import slots
from autorep.mpc.rlwe.packing import Packing


@dataclass(frozen=True)
class Work:
    """What one party computes in one call of `Maker.make`.

    Attributes:
        weights: polynomials of its weights, transformed once for all kits.
        products: polynomials multiplied by them, two for each ciphertext.
        ciphertexts: of linear layers, made, answered and decrypted.
        blocks: of slots, two products each.
        transfers: correlated ones, in either direction.
        values: bytes that these carry.
        multiplications: in its own ring convolutions.
    """

    weights: int = 0
    products: int = 0
    ciphertexts: int = 0
    blocks: int = 0
    transfers: int = 0
    values: int = 0
    multiplications: int = 0

    def seconds(self, speed: Speed) -> float:
        """Processor time."""
        return (
            self.weights * speed.weight
            + self.products * speed.product
            + self.ciphertexts * speed.ciphertext
            + self.blocks * speed.block
            + self.transfers * speed.transfer
            + self.values * speed.value
            + self.multiplications / speed.multiplications
        )


@dataclass(frozen=True)
class Speed:
    """Seconds of one core for one of each, and ring multiplications a second."""

    weight: float = 30e-6
    product: float = 2.5e-6
    ciphertext: float = 350e-6
    block: float = 4.7e-3
    transfer: float = 60e-9
    value: float = 5e-9
    multiplications: float = 20e9
    frame: float = 2e-4  # of every message, whatever it carries


ONE_CORE = Speed()


def lattice_work(packings: Iterable[Packing], images: int, quadratics: int) -> Work:
    """Linear layers and quadratics by encryption."""
    found = list(packings)
    weights = sum(packing.products for packing in found)
    return Work(
        weights=weights,
        products=2 * weights * images,
        ciphertexts=images * sum(packing.requests + packing.answers for packing in found),
        blocks=images * slots.blocks_of(quadratics),
    )
