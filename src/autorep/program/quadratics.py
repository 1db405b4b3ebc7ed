"""How large the products of a quadratic's coefficients and its masks get: without a dealer that has a bound.

Two servers multiply them modulo t, a little below 2**62, and need them exactly (`mpc/rlwe/slots.py`). The compiler
keeps quadratics within it where it can, and the owner's word (`mpc/two_party/names.py`) says whether it could.
"""

from __future__ import annotations

from autorep.program.ir import Activation

LARGEST_PRODUCT = 2.0**59.99
MASK = 1.5  # the largest mask, guard band included, over half of its ring


def largest_product(op: Activation, a: float, b: float) -> float:
    """Bound of |a·ρ² − b·ρ| over all masks ρ; a and b are magnitudes as encoded."""
    mask = MASK * 2.0 ** (op.open_bits - op.in_frac + op.quad_frac - 1)
    return a * mask**2 + b * mask
