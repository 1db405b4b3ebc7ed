"""Known answers of the kernels, the same at every level and on every processor.

Here every case is computed by the Python face; known_answers.cpp computes the same without Python, for `make arm`.
`python -m tests.native.known_answers` prints them, as known_answers.txt keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from autorep import _native

RECORDED = Path(__file__).with_suffix(".txt")
U64 = np.uint64


def answers() -> dict[str, str]:
    """Case -> digest of its result."""
    return {name: _digest(result) for cases in (_streams, _convolutions, _comparisons) for name, result in cases()}


def recorded() -> dict[str, str]:
    """The answers that every processor must give."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def _words(seed: int, *shape: int, bits: int = 64) -> np.ndarray:
    return _native.prg(bytes([seed]) * 16, np.empty(shape, np.uint64), bits)


def _digest(result: np.ndarray) -> str:
    digest = 0
    for byte in result.tobytes():
        digest = (digest * 0x9E3779B97F4A7C15 + byte + 1) % 2**64
    return f"{digest:016x}"


def _streams() -> Iterator[tuple[str, np.ndarray]]:
    for bits in (44, 64):
        yield f"generator {bits}", _words(1, 1001, bits=bits)
    x = _words(2, 1001)
    for bits in (1, 13, 44, 64):
        packed = _native.pack(x, bits)
        yield f"pack {bits}", packed
        yield f"unpack {bits}", _native.unpack(packed, 1001, bits)
    yield "planes", _native.bit_planes(_words(3, 640), 24)


def _convolutions() -> Iterator[tuple[str, np.ndarray]]:
    for name, bits, stride, groups, algorithm in (
        ("direct 44", 44, 1, 1, "direct"),
        ("direct 64", 64, 1, 1, "direct"),
        *((f"winograd{side} 44", 44, 1, 1, f"winograd{side}") for side in (2, 3, 4)),
        ("stride 44", 44, 2, 1, "auto"),
        ("depthwise 44", 44, 1, 16, "auto"),
    ):
        weight = _words(4, 24 if groups == 1 else 16, 16 // groups, 3, 3)
        shape = (16, 9, 7)
        conv = _native.PackedConv(
            weight, shape, (stride, stride), (1, 1), groups=groups, bits=bits, algorithm=algorithm
        )  # type: ignore[arg-type]  # a str
        x, cut = _words(5, 2, *shape), U64(2**bits - 1)
        yield f"convolution {name}", conv.run(x) & cut
        yield f"convolution {name} onto", conv.run(x, _words(15, 2, *conv.out_shape)) & cut


def _comparisons() -> Iterator[tuple[str, np.ndarray]]:
    count, n = 40, 22
    alpha, x = _words(6, count) >> U64(64 - n), _words(11, count) >> U64(64 - n)
    beta = _words(7, count, 3) & np.array([2**44 - 1, 2**44 - 1, 2**16 - 1], np.uint64)
    roots, aes_keys = (_words(8, count, 2), _words(9, count, 2)), _words(10, 4).tobytes()
    keys = _native.dcf_gen(alpha, beta, n, 44, 16, *roots, aes_keys)
    yield "comparison keys", keys
    for party in (0, 1):
        yield f"comparison {party}", _native.dcf_eval(party, x, n, 44, 16, roots[party], keys, aes_keys)
    keys = _native.sign_gen(alpha, n, *roots, aes_keys)
    yield "short keys", keys
    for party in (0, 1):
        yield f"short comparison {party}", _native.sign_eval(party, x, n, roots[party], keys, aes_keys)
    opened, index = _words(12, 1, 200, bits=44), np.arange(200)
    p0, p1, q0, q1, mask = _words(13, 5, 1, 200)
    a, b, c = _words(14, 3, 1)
    yield "quadratic", _native.quadratic_share(opened, index, 200, 44, 12, p0, p1, q0, q1, a, b, c, mask)


if __name__ == "__main__":
    for name, digest in answers().items():
        print(f"{name}\t{digest}")
