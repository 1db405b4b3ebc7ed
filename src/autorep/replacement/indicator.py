"""The indicator: mask (1 keeps a ReLU), its trainable stand-in `aux`, the straight-through gradient, hysteresis.

A mask is a step function of aux, so its derivative is zero wherever it exists; training uses a surrogate instead.
The paper says "softplus" and leaves two readings:

* `softplus` (default, what the authors' program does): dm/daux := softplus(aux) = ln(1 + e^aux). It grows with aux,
  so clearly kept elements still feel the loss and the penalty.
* `sigmoid`: dm/daux := softplus'(aux) = 1/(1 + e^−aux), the derivative of a softplus-shaped indicator; bounded by 1.

Both are positive everywhere, so the sign of the gradient is always that of dL/dm, and an optimiser moves aux AGAINST
it: an element whose ReLU lowers the loss has dL/dm < 0 and its aux rises. The mask itself changes only in the
explicit hysteresis step after the optimiser's step, never inside forward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SURROGATES = ("softplus", "sigmoid")
START = 0.5  # aux of every element before any training: the middle of the authors' U(0, 1), without its lottery


def surrogate_slope(aux: Tensor, surrogate: str) -> Tensor:
    """dm/daux as the chosen reading defines it."""
    return F.softplus(aux) if surrogate == "softplus" else torch.sigmoid(aux)


def straight_through(mask: Tensor, aux: Tensor, surrogate: str) -> Tensor:
    """The mask as numbers of aux's type, whose gradient flows to aux times the surrogate's slope."""
    return mask.to(aux.dtype) + (aux - aux.detach()) * surrogate_slope(aux.detach(), surrogate)


def hysteresis_step(mask: Tensor, aux: Tensor, hysteresis: float) -> Tensor:
    """The next mask: 1→0 only when aux ≤ −hysteresis, 0→1 only when aux > hysteresis, otherwise unchanged."""
    keep = torch.where(mask.bool(), aux > -hysteresis, aux > hysteresis)
    return keep.to(mask.dtype)
