"""Arithmetic on bits by correlated transfers: both parties call the same function with their own shares.

A bit is shared by exclusive or (uint64 arrays of 0 and 1), a number additively modulo some ring. Costs of one
element: `both_bits` (AND) 2 transfers of 1 bit, `to_ring` 1, `select` (bit × numbers) 2, `add` 2 a bit, `products`
2 a bit of one factor. A call of any of them takes two flights, `add` two a bit. Neither party learns anything: what it
receives is masked by pads it cannot compute.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autorep.mpc.ot.extension import Modulus, Transfers, power
from autorep.mpc.ring import U64

BIT = power(1)


class BitTools:
    """One party's end. `party` is 0 or 1."""

    def __init__(self, party: int, transfers: Transfers) -> None:
        self.party, self._transfers = party, transfers

    def both_bits(self, label: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Share of x AND y for shared bits: the two mixed terms by one transfer each."""
        (sent,), (received,) = self._transfers.both(label, x, [y], [BIT])
        return (x & y).reshape(-1) ^ sent ^ received

    def private_product(self, label: str, mine: np.ndarray, parts: Sequence[Modulus]) -> list[np.ndarray]:
        """Shares, in every ring of `parts`, of the product of P0's own number and P1's own bit: one transfer."""
        if self.party == 0:
            return self._transfers.send(label, [mine] * len(parts), parts)
        return self._transfers.receive(label, mine, parts)

    def to_ring(self, label: str, bits: np.ndarray, ring: Modulus) -> np.ndarray:
        """Additive share of a shared bit: x₀ + x₁ − 2·x₀·x₁."""
        product = self.private_product(label, bits, [ring])[0]
        twice = ring.reduce(product + product)
        return ring.reduce(ring.reduce(bits.reshape(-1)) + ring.negative(twice))

    def select(
        self, label: str, bit: np.ndarray, values: Sequence[np.ndarray], parts: Sequence[Modulus]
    ) -> list[np.ndarray]:
        """Shares of bit·v for each additively shared v: (b₀ ⊕ b₁)·v_i = b_i·v_i + b_j·(1 − 2·b_i)·v_i."""
        bit = bit.reshape(-1)
        flat = [part.reduce(value.reshape(-1)) for value, part in zip(values, parts)]
        signed = [np.where(bit == 1, part.negative(value), value) for value, part in zip(flat, parts)]
        sent, received = self._transfers.both(label, bit, signed, parts)
        return [
            part.reduce(part.reduce(bit * value + mine) + theirs)
            for value, part, mine, theirs in zip(flat, parts, sent, received)
        ]

    def add(
        self, label: str, mine: np.ndarray, bits: int, carry_out: bool = True
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Shared bits (least first) of the sum of the parties' own numbers, each below 2**bits, and the shared carry.

        A ripple: with carry c, the next one is c ⊕ (x ⊕ c)·(y ⊕ c), one AND a bit; the last only for `carry_out`.
        """
        mine, carry = mine.reshape(-1), np.zeros(mine.size, np.uint64)
        out = []
        for number in range(bits):
            with_carry = ((mine >> U64(number)) & U64(1)) ^ carry
            out.append(with_carry)  # x ⊕ c₀ at P0, y ⊕ c₁ at P1: together the sum's bit
            if number == bits - 1 and not carry_out:
                break
            left, right = (with_carry, carry) if self.party == 0 else (carry, with_carry)
            carry = carry ^ self.both_bits(f"{label}/{number}", left, right)
        return out, carry

    def products(self, label: str, x: np.ndarray, y: np.ndarray, bits: int) -> np.ndarray:
        """Share of x·y modulo 2**bits (Gilboa): each party chooses by the bits of its x and sends 2**j·y."""
        x, y = x.reshape(-1), y.reshape(-1)
        return x * y + self.matrix_products(label, x[None, :], y[None, None, :], bits).reshape(-1)

    def matrix_products(self, label: str, x: np.ndarray, y: np.ndarray, bits: int) -> np.ndarray:
        """Share of the mixed terms x_i·y_j of each element of x (terms, columns) with the rows y (rows, terms, 1 or
        columns), summed over the terms: (rows, columns) modulo 2**bits. `bits` transfers of `rows` numbers an element.
        """
        ring, places = power(bits), np.arange(bits, dtype=np.uint64)
        choices = (x[..., None] >> places) & U64(1)  # (terms, columns, bits)
        shape = choices.shape
        values = [np.broadcast_to(row[..., None] << places, shape).reshape(-1) for row in y]
        sent, received = self._transfers.both(label, choices.reshape(-1), values, [ring] * len(values))
        totals = [(a + b).reshape(shape).sum(axis=(0, 2), dtype=np.uint64) for a, b in zip(sent, received)]
        return np.stack(totals) if bits == 64 else np.stack(totals) & U64((1 << bits) - 1)
