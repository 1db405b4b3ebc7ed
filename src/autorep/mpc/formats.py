"""Fingerprints of everything two machines must compute alike: a release that differs in one of them is refused.

Each is a short hash of what the construction gives for a fixed input, so it changes whenever the construction does and
cannot be forgotten. Servers and dealer compare them in every handshake; kits carry them with their own layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

import numpy as np

from autorep import _native
from autorep.mpc.prg import stream
from autorep.mpc.sizes import Item

LAYOUT_BYTES = 8


@cache
def formats() -> dict[str, str]:
    """Name of a construction -> eight hexadecimal digits."""
    words = np.arange(1, 71, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # any fixed words
    planes = _native.bit_planes(words, 13)
    return {
        "streams": _digest(stream(bytes(range(32)), "formats", (70,), 44)),
        "packing": _digest(_native.pack(words, 44)),
        "bit planes": _digest(planes, _native.from_bit_planes(planes, words.size)),
        "comparison": _digest(*_comparison(words)),
        "short comparison": _digest(*_short_comparison(words)),
    }


def layout(items: Iterable[Item]) -> bytes:
    """What a kit's header says of its contents: the formats, and every item in order."""
    text = repr((sorted(formats().items()), [(item.label, item.kind, item.count, item.bits) for item in items]))
    return hashlib.blake2b(text.encode(), digest_size=LAYOUT_BYTES).digest()


def _comparison(words: np.ndarray) -> list[np.ndarray]:
    count, shape, aes_keys = 10, (22, 44, 16), bytes(range(32))
    root0, root1 = words[:20].reshape(count, 2), words[20:40].reshape(count, 2)
    alpha, beta = words[40:50] >> np.uint64(42), words[40:70].reshape(count, 3)
    keys = _native.dcf_gen(alpha, beta, *shape, root0, root1, aes_keys)
    x = np.full(count, 1 << 21, np.uint64)
    return [keys, *(_native.dcf_eval(i, x, *shape, root, keys, aes_keys) for i, root in enumerate((root0, root1)))]


def _short_comparison(words: np.ndarray) -> list[np.ndarray]:
    window, aes_keys = 22, bytes(range(32))
    roots, x = (words[:20].reshape(10, 2), words[20:40].reshape(10, 2)), words[50:60]
    keys = _native.sign_gen(words[40:50], window, *roots, aes_keys)
    return [keys, *(_native.sign_eval(i, x, window, root, keys, aes_keys) for i, root in enumerate(roots))]


def _digest(*arrays: np.ndarray) -> str:
    return hashlib.blake2b(b"".join(array.tobytes() for array in arrays), digest_size=4).hexdigest()
