"""What travels between client and server: a query id, and shares as little-endian 64-bit words. numpy only."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence

import numpy as np

from autorep.program.ir import decode, encode_input

CONTENT_TYPE = "application/octet-stream"
IMAGES_PER_QUERY = 32  # at most
QUERY_ID = re.compile(r"[0-9a-f]{32}")


def new_query_id() -> str:
    """A fresh random id; both halves of one query carry it, no two queries do."""
    return secrets.token_hex(16)


def split(values: np.ndarray, frac: int, limits: Sequence[float] | None = None) -> tuple[bytes, bytes]:
    """Two bodies that add up to the fixed-point values mod 2**64; either alone is uniform noise.

    Values outside `limits`, the program's published input range, are refused before anything is shared.
    """
    encoded = encode_input(values, frac, limits).astype("<u8", copy=False)
    mask = np.frombuffer(secrets.token_bytes(encoded.nbytes), "<u8").reshape(encoded.shape)
    return mask.tobytes(), (encoded - mask).tobytes()


def join(first: bytes, second: bytes, bits: int, frac: int) -> np.ndarray:
    """The real values from both servers' answers."""
    total = np.frombuffer(first, "<u8").astype(np.uint64) + np.frombuffer(second, "<u8").astype(np.uint64)
    return decode(total, bits, frac)


def body_bytes(shape: tuple[int, ...]) -> int:
    """Length of a share of one image."""
    return 8 * math.prod(shape)


def read_body(body: bytes, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Posted shares, each as a batch of one."""
    return list(np.frombuffer(body, "<u8").astype(np.uint64).reshape(-1, 1, *shape))


def write_body(share: np.ndarray) -> bytes:
    """A share of an answer as a body."""
    return share.astype("<u8", copy=False).tobytes()
