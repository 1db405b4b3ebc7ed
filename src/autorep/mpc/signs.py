"""Comparing masked values: what the comparison protocols have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from autorep.mpc.online import Exchange
from autorep.mpc.sizes import Round
from autorep.mpc.verbs import Correlation, Source


@dataclass(frozen=True)
class SignBatch:
    """`count` signs of values t = T − R, T public and R shared, at each of `points` public offsets.

    Attributes:
        window: n; exact for |t| < 2**n.
        bits: ring of the shares that come out.
        wrap_bits: ring of the wrap bit's share; 0 when no wrap bit enters.
        points: offsets (knots) at which the same value is compared.
        pays: what is wanted of a value: shares of relu(t), or of the bit [t >= 0] alone.
    """

    label: str
    count: int
    window: int
    bits: int
    wrap_bits: int
    points: int = 1
    pays: Literal["relu", "bit"] = "relu"


class SignProtocol(ABC):
    """Shares of relu(t), or of [t >= 0], for one batch of signs; described and executed as an `Operation` is."""

    def __init__(self, batch: SignBatch) -> None:
        self.batch = batch

    @abstractmethod
    def rounds(self) -> Iterator[Round]:
        """The exchanges; all points share them."""

    @abstractmethod
    def correlations(self) -> Iterator[Correlation]:
        """The correlated randomness, in the order in which `correlate` draws it."""

    @abstractmethod
    def correlate(self, source: Source, big_r: np.ndarray, wrap: np.ndarray) -> Any:
        """Draw it for the masks R and the wrap bits m, flat: material for `relu`."""

    @abstractmethod
    def relu(
        self, exchange: Exchange, material: Any, points: Sequence[np.ndarray], lifted: np.ndarray, wrap_shift: int
    ) -> list[np.ndarray]:
        """Shares of relu(t), t = T − R + c·m·2**k, at every point.

        Args:
            points: T for every knot, flat.
            lifted: the public bits c.
            wrap_shift: k.
        """

    @abstractmethod
    def nonnegative(self, exchange: Exchange, material: Any, points: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Shares of [t >= 0], t = T − R, at every point; of a batch that pays out the bit."""
