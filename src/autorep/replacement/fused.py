"""The masked activation in one pass forward and one backward, on CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from autorep.replacement.activation import MaskedActivation


def usable(site: MaskedActivation, z: Tensor) -> bool:
    """Whether the native kernel can run this site."""
    return False


def apply(site: MaskedActivation, z: Tensor, range_limit: float | None) -> tuple[Tensor, Tensor | None]:
    raise NotImplementedError
