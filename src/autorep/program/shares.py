"""Additive shares of a model's parameters, made with the operating system's randomness."""

from __future__ import annotations

import secrets

import numpy as np

from autorep._native import prg
from autorep.program.ir import Program


def share_parameters(program: Program) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Shares modulo 2**64 of every encoded parameter: party 0's are uniform, party 1's the differences.

    One AES-128-CTR stream per parameter, each under a fresh key from the operating system.
    """
    shares: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
    for op in program.ops:
        for name in op.parameter_names:
            label = f"{op.name}.{name}"
            if label in program.parameters:
                value = program.encoded(op, name)
                mask = np.empty(value.shape, np.uint64)
                prg(secrets.token_bytes(16), mask.reshape(-1))
                shares[0][label], shares[1][label] = mask, value - mask
    return shares
