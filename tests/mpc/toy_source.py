"""A source of correlations in one file: it asks the other party for its operands and computes in the open.

It protects nothing; it shows what a source has to do. `draw` sees shares of the operands and returns shares of the
result; `parameter` saw this party's shares of what `LinearImage` and `Quadratic` multiply.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc import verbs
from autorep.mpc.online import Exchange
from autorep.mpc.operations import Operation
from autorep.mpc.party import Party
from autorep.mpc.preparation import Preparation, QuerySource
from autorep.mpc.prg import stream
from autorep.mpc.ring import U64, reduce
from autorep.mpc.verbs import Correlation


class OpenPreparation(Preparation):
    """Opens every parameter; `source` then takes the batch size as its "kit"."""

    def __init__(self, exchange: Exchange, comparison: str = "bits") -> None:
        self._exchange, self._comparison = exchange, comparison
        self.parameters: dict[str, Any] = {}

    def parameter(self, operation: Operation, name: str, share: np.ndarray) -> None:
        label = f"{operation.op.name}.{name}"
        self.parameters[label] = operation.pack(name, self._exchange.open(label, [(share, 64)])[0])

    def source(self, kit: bytes | memoryview) -> OpenSource:
        return OpenSource(self._exchange, self.parameters, kit[0], self._comparison)


class OpenSource(QuerySource):
    """Party 0's share of a result is a stream both know, party 1's the difference."""

    def __init__(self, exchange: Exchange, parameters: dict[str, Any], batch: int, comparison: str) -> None:
        self.kit_id, self.party, self.batch = b"toy", exchange.party, batch
        self.comparison, self._exchange, self._parameters = comparison, exchange, parameters
        self._number = 0

    def made_for(self, party: Party) -> OpenSource:
        """For this program, whichever it is."""
        self.program_hash = party.program_hash
        return self

    def draw(self, correlation: Correlation, *operands: np.ndarray) -> Any:
        opened = [self._exchange.open(correlation.label, [(operand, 64)])[0] for operand in operands]
        return getattr(self, f"_{type(correlation).__name__}")(correlation, *opened)

    def _random(self, count: int, bits: int = 64) -> np.ndarray:
        self._number += 1
        return stream(b"\x07" * 32, str(self._number), (count,), bits)

    def _share(self, value: np.ndarray) -> np.ndarray:
        mine = self._random(value.size).reshape(value.shape)
        return mine if self.party == 0 else value - mine

    def _xor(self, value: np.ndarray) -> np.ndarray:
        mine = self._random(value.size).reshape(value.shape)
        return mine if self.party == 0 else value ^ mine

    def _Mask(self, c: verbs.Mask) -> np.ndarray:
        both = self._random(c.count, c.bits), self._random(c.count, c.bits)
        return both[self.party]

    def _Truncation(self, c: verbs.Truncation, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r = reduce(r, c.open_bits)
        wrap = r >> U64(c.open_bits - 1) if c.wrap_bits else np.zeros_like(r)
        return self._share(r >> U64(c.shift)), self._share(wrap) if c.wrap_bits else wrap

    def _Product(self, c: verbs.Product, rho: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        return self._share(rho * gamma)

    def _LinearImage(self, c: verbs.LinearImage, rho: np.ndarray) -> np.ndarray:
        return self._share(U64(0) - self._parameters[f"{c.op.name}.weight"](rho))

    def _Quadratic(self, c: verbs.Quadratic, r: np.ndarray) -> verbs.QuadraticShares:
        a, b = (self._parameters[f"{c.op.name}.{name}"][c.channels] for name in "ab")
        r = reduce(r[:, c.op.quad_index], c.op.open_bits)
        base, wrap = r >> U64(c.shift), (r >> U64(c.op.open_bits - 1)) << U64(c.op.open_bits - c.shift)
        cases = base, base - wrap
        p = [self._share(a * rho) for rho in cases]
        q = [self._share(a * rho * rho - b * rho) for rho in cases]
        return verbs.QuadraticShares((p[0], p[1]), (q[0], q[1]))

    def _Bits(self, c: verbs.Bits, big_r: np.ndarray) -> np.ndarray:
        return self._xor(_native.bit_planes(big_r, c.width))

    def _BitTriples(self, c: verbs.BitTriples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, y = self._random(c.count), self._random(c.count)
        return self._xor(x), self._xor(y), self._xor(x & y)

    def _Selection(self, c: verbs.Selection, big_r: np.ndarray, wrap: np.ndarray) -> verbs.SelectionShares:
        planes = self._random(c.points * ((c.count + 63) // 64)).reshape(c.points, -1)
        bits = np.stack([_native.from_bit_planes(row.reshape(1, -1), c.count) for row in planes])
        products = [self._share(bits), self._share(bits * big_r), self._share(bits * wrap)]
        return verbs.SelectionShares(self._xor(planes), *products)
