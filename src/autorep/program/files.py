"""Programs on disk (in progress). The engine uses `program_hash` and `share_parameters` from here: keep both."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from autorep.program import ir


def program_hash(program: ir.Program) -> str:
    """SHA-256 (hex) over the canonical public part and the model id."""
    digest = hashlib.sha256(program.model_id.encode())
    for op in program.ops:
        fields = {f.name: getattr(op, f.name) for f in dataclasses.fields(op)}
        digest.update(
            json.dumps(
                {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
            ).encode()
        )
    return digest.hexdigest()


def share_parameters(program: ir.Program) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Additive shares mod 2**64 of every encoded parameter, by cryptographic randomness: (party 0's, party 1's)."""
    import secrets

    shares: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
    for op in program.ops:
        for name in op.parameter_names:
            label = f"{op.name}.{name}"
            if label in program.parameters:
                value = program.encoded(op, name)
                mask = np.frombuffer(secrets.token_bytes(value.nbytes), np.uint64).reshape(value.shape)
                shares[0][label], shares[1][label] = mask.copy(), value - mask
    return shares
