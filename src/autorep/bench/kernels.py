"""Every native kernel beside the processor's limit in the same run, and beside torch or numpy.

All on one thread. A time is processor time of this thread, the best of several calls, so other programs on the machine
disturb it little. A limit is what the processor does when it does nothing else: multiply-adds or AES rounds on
registers, or reading and copying as many bytes as the kernel must.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch.nn import functional as F

from autorep import _native
from autorep._native import _core, ot
from autorep.mpc.rlwe.parameters import linear_ring, slot_ring
from autorep.replacement import MaskedActivation

BITS = 44
DCF = (22, 44, 16)  # domain bits, payload bits, small payload bits
# channels in and out, side of the image, kernel, stride: the distinct layers of ResNet-18 for 32 x 32 images
LAYERS = [
    (3, 64, 32, 3, 1),
    (64, 64, 32, 3, 1),
    (64, 128, 32, 3, 2),
    (64, 128, 32, 1, 2),
    (128, 128, 16, 3, 1),
    (128, 256, 16, 3, 2),
    (256, 256, 8, 3, 1),
    (256, 512, 8, 3, 2),
    (512, 512, 4, 3, 1),
]


def measure(quick: bool = False) -> dict[str, Any]:
    """Rates, limits and comparisons of all kernels as JSON-able rows."""
    threads, torch_threads = _native.get_threads(), torch.get_num_threads()
    _native.keep_freed_memory()  # else mapping fresh memory for results would be most of the time
    _native.set_threads(1)
    torch.set_num_threads(1)
    try:
        limits = _limits(quick)
        kinds = (_convolutions, _streams, _elementwise, _preparing, _masked_activation)
        rows = [row for kind in kinds for row in kind(limits, quick)]
    finally:
        _native.set_threads(threads)
        torch.set_num_threads(torch_threads)
    return {"simd": _native.simd(), "threads": 1, "limits": limits, "rows": rows}


def _best(call: Callable[[], object], quick: bool, seconds: float = 0.3) -> float:
    """Processor seconds of the fastest of several calls, after one that warms up."""
    call()
    best, spent, calls = float("inf"), 0.0, 0
    while calls < 3 or (spent < (seconds / 5 if quick else seconds) and calls < 200):
        start = time.thread_time()
        call()
        took = time.thread_time() - start
        best, spent, calls = min(best, took), spent + took, calls + 1
    return best


def _limits(quick: bool) -> dict[str, float]:
    """What the processor can do at most, per second of one core, at the active instruction-set level."""
    sink, work, buffer = np.ones(1, np.uint64), 20_000_000, np.ones(1 << 20, np.uint64)
    target = np.empty_like(buffer)

    def probe(call: Callable[[], int]) -> float:
        return call() / _best(call, quick)  # a call says how much it did, the same at every call

    return {
        **{
            f"multiply_add_{bits}_per_s": probe(partial(_core.probe_multiply_add, bits, work, sink))
            for bits in (46, 52, 64)
        },
        "aes_blocks_per_s": probe(partial(_core.probe_aes, work // 10, sink)),
        "copy_bytes_per_s": 2 * buffer.nbytes / _best(lambda: np.copyto(target, buffer), quick),
        "read_bytes_per_s": buffer.nbytes / _best(lambda: _core.probe_read(buffer), quick),
    }


Time = tuple[float, str]  # seconds, and whose: a limit of the processor's, or another library's for the same work


def _row(
    kernel: str, case: str, work: float, unit: str, seconds: float, bound: Time | None = None, other: Time | None = None
) -> dict[str, Any]:
    """One line of the table: `work` units done in `seconds`."""
    limit, limited_by = bound or (None, None)
    others, whose = other or (None, None)
    return {
        "kernel": kernel,
        "case": case,
        "unit": unit,
        "seconds": seconds,
        "rate": work / seconds,
        "limit_rate": limit and work / limit,
        "limited_by": limited_by,
        "fraction_of_limit": limit and limit / seconds,
        "compared_with": whose,
        "times_faster": others and others / seconds,
    }


def _by_aes(limits: dict[str, float], blocks: int) -> Time | None:
    """What AES alone takes for so many blocks, where the level has instructions for it."""
    return (blocks / limits["aes_blocks_per_s"], "AES") if limits["aes_blocks_per_s"] else None


def _tile_products(tile: int, length: int) -> int:
    """Of one channel in and out along a line; tiles of side 3 take some of side 2 among them, to end with the line."""
    tiles = -(-length // tile)
    shorter = min(tiles, 3 * tiles - length) if tile == 3 else 0
    return tiles * (tile + 2) - shorter


def _convolutions(limits: dict[str, float], quick: bool) -> Iterator[dict[str, Any]]:
    """Direct and Winograd, batch 1, on each layer shape.

    The limit: the multiplications that the algorithm needs (a direct one none with the border), or reading its packed
    weight once.
    """
    for channels, outputs, side, kernel, stride in LAYERS[1::3] if quick else LAYERS:
        weight, x = _words(outputs, channels, kernel, kernel), _words(1, channels, side, side)
        tensors = (torch.from_numpy(array.view(np.int64)) for array in (x, weight))
        theirs = (_best(partial(F.conv2d, *tensors, stride=stride, padding=kernel // 2), quick, 0.1), "torch int64")
        ones = torch.ones(1, 1, side, side), torch.ones(1, 1, kernel, kernel)
        inside = channels * outputs * float(F.conv2d(*ones, stride=stride, padding=kernel // 2).sum())
        layer = f"{channels}→{outputs}, {side}x{side}, {kernel}x{kernel}" + (f" stride {stride}" if stride > 1 else "")
        winograd = kernel == 3 and stride == 1 and channels > 3
        whole = [] if quick else [("direct", 64)]
        ways: list[tuple[Any, int]] = [("direct", BITS), *[("winograd", BITS)] * winograd, *whole]
        for algorithm, bits in ways:
            strides, padding = (stride, stride), (kernel // 2, kernel // 2)
            conv = _native.PackedConv(weight, x.shape[1:], strides, padding, bits=bits, algorithm=algorithm)
            out = conv.run(x)
            work, packed = weight[0].size * out.size, np.ones(conv.packed_bytes // 8, np.uint64)
            needed, extra_bits = inside, 0
            if (tile := conv.algorithm.removeprefix("winograd")).isdigit():
                needed, extra_bits = channels * outputs * _tile_products(int(tile), side) ** 2, 6 if tile == "4" else 2
            ring = next(width for width in (46, 52, 64) if bits + extra_bits <= width)
            multiply = needed / limits[f"multiply_add_{ring}_per_s"]
            read = _best(partial(_core.probe_read, packed), quick, 0.05)
            bound = max((multiply, "multiplier"), (read, "reading the weight"))
            seconds = _best(partial(conv.run, x, out), quick)
            case = f"{layer}, {bits} bits, {conv.algorithm}"
            yield _row("convolution", case, work, "MAC", seconds, bound, theirs)


def _streams(limits: dict[str, float], quick: bool) -> Iterator[dict[str, Any]]:
    """What AES decides: the generator, and comparison keys made and evaluated."""
    bound = partial(_by_aes, limits)
    out = np.empty(1 << 20, np.uint64)
    zeros, sink = bytes(out.nbytes), bytearray(out.nbytes + 15)

    def library() -> None:
        Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor().update_into(zeros, sink)

    seconds = _best(lambda: _native.prg(bytes(16), out, BITS), quick)
    other = (_best(library, quick), "cryptography")
    yield _row("generator", f"{BITS}-bit words", out.nbytes, "byte", seconds, bound(out.size // 2), other)

    n, large, small = DCF
    count = 2000 if quick else 12_900
    alpha, x = _words(count) >> np.uint64(64 - n), _words(count) >> np.uint64(64 - n)
    beta, root0, root1 = _words(count, 3), _words(count, 2), _words(count, 2)
    case, levels = f"n={n}, {large}+{large}+{small} bits", n - 7
    make: Callable[[], Any] = partial(_native.dcf_gen, alpha, beta, *DCF, root0, root1, bytes(32))
    evaluate = partial(_native.dcf_eval, 0, x, *DCF, root0, make(), bytes(32))
    yield _row("comparison keys", case, count, "key", _best(make, quick), bound(count * (8 * n + 2)))
    yield _row("comparison", case, count, "ReLU", _best(evaluate, quick), bound(count * (2 * n + 1)))
    make = partial(_native.sign_gen, alpha, n, root0, root1, bytes(32))
    tell = partial(_native.sign_eval, 0, x, n, root0, make(), bytes(32))
    yield _row("short comparison keys", f"n={n}", count, "key", _best(make, quick), bound(count * (4 * levels + 2)))
    yield _row("short comparison", f"n={n}", count, "ReLU", _best(tell, quick), bound(count * (levels + 1)))


def _elementwise(limits: dict[str, float], quick: bool) -> Iterator[dict[str, Any]]:
    """What memory decides: one pass each; the limit is copying as many bytes as must be read and written."""
    n, planes = 1 << 20, 24
    a, b, c, d, e, f, g = (_words(n) for _ in range(7))  # distinct arrays, as in use: none is in the cache already
    bit, sign, v = _words(n) & np.uint64(1), _words(n) & np.uint64(1), _words(n, 3)
    index = np.sort(np.random.default_rng(0).permutation(n)[: n * 15 // 16]).astype(np.int64)
    opened, k = (_words(n) & np.uint64(2**BITS - 1)).reshape(1, n), index.size
    p0, p1, q0, q1, mask = (_words(1, k) for _ in range(5))
    coefficients, flat, scattered = _words(n // 1024), opened[0], np.empty_like(opened)
    packed, plane_words = _native.pack(a, BITS), _native.bit_planes(a, planes)

    def quadratic() -> np.ndarray:
        one, two, three = coefficients, coefficients, coefficients
        return _native.quadratic_share(opened, index, 1024, BITS, 20, p0, p1, q0, q1, one, two, three, mask)

    def numpy_quadratic() -> np.ndarray:
        y, coefficient = flat[index], coefficients[index >> 10]
        t, wrapped = (y >> np.uint64(20)) - np.uint64(1 << (BITS - 22)), y >> np.uint64(BITS - 1)
        p, q = np.where(wrapped, p0, p1), np.where(wrapped, q0, q1)
        return (coefficient * t - p - p + coefficient) * t + q + coefficient + mask

    def numpy_relu() -> np.ndarray:
        s, r, m = v[:, 0] + e, v[:, 1] + f, v[:, 2] + g
        s, r, m = np.where(sign, s, 1 - s), np.where(sign, r, b - r), np.where(sign, m, c - m)
        return a * s - r + ((bit * m) << np.uint64(BITS - 16))

    def numpy_and() -> np.ndarray:
        return e ^ (a & d) ^ (b & c)

    def numpy_pack() -> np.ndarray:
        bits = np.unpackbits(a.view(np.uint8), bitorder="little").reshape(n, 64)[:, :BITS]
        return np.packbits(bits, bitorder="little")

    relu = partial(_native.relu_share, a, bit, sign, 0, 1, v, b, c, e, f, g, BITS, 16)
    some, word, plane = "15/16 of the positions", f"{BITS} bits", f"{planes} planes"
    cases: list[tuple[str, str, int, float, Callable[[], object], Callable[[], object] | None]] = [
        ("pack", word, n, 8 + BITS / 8, partial(_native.pack, a, BITS), numpy_pack),
        ("unpack", word, n, 8 + BITS / 8, partial(_native.unpack, packed, n, BITS), None),
        ("open", word, n, 16 + BITS / 8, partial(_native.open_packed, b, packed, BITS), None),
        ("bit planes", plane, n, 8 + planes / 8, partial(_native.bit_planes, a, planes), None),
        ("words of planes", plane, n, 8 + planes / 8, partial(_native.from_bit_planes, plane_words, n), None),
        ("AND layer", "64 bits a word", n, 48, partial(_native.and_layer, 0, a, b, c, d, e), numpy_and),
        ("quadratic", some, k, 64, quadratic, numpy_quadratic),
        ("ReLU share", "", n, 96, relu, numpy_relu),
        ("gather", some, k, 24, partial(_native.gather, opened, index), lambda: flat[index]),
        ("scatter", some, k, 24, partial(_native.scatter_shift, scattered, index, p0, 20), None),
    ]
    for kernel, case, count, moved, ours, theirs in cases:
        other = (_best(theirs, quick, 0.1), "numpy") if theirs else None
        bound = (count * moved / limits["copy_bytes_per_s"], "copying")
        yield _row(kernel, case, count, "element", _best(ours, quick), bound, other)


def _preparing(limits: dict[str, float], quick: bool) -> Iterator[dict[str, Any]]:
    """What preparation between two servers spends its time on: transfers, and transforms of polynomials."""
    rng, count = np.random.default_rng(2), 1 << (15 if quick else 18)
    keys, delta = rng.integers(0, 256, (ot.BLOCKS, ot.KEYS, 16), np.uint8), _words(2)
    receiver, sender, choices = ot.Receiver(keys), ot.Sender(keys, delta), _words(count // 64)
    message, _ = receiver.extend(0, choices)
    for case, call, each in (
        ("receiver", lambda: receiver.extend(0, choices), 6),
        ("sender", lambda: sender.extend(0, message), 8),
    ):
        yield _row("transfer", case, count, "transfer", _best(call, quick), _by_aes(limits, count * each))
    for ring in (linear_ring(), slot_ring()):
        x, polynomials = ring.uniform(bytes(16), 8), 8 * len(ring.primes)
        w, y = ring.uniform(bytes(16), 16), np.stack([ring.uniform(bytes([i]) * 16, 8) for i in range(16)], 1)
        for case, call, work in (
            ("forward", lambda ring=ring, x=x: ring.forward(x), polynomials),
            ("inverse", lambda ring=ring, x=x: ring.inverse(x), polynomials),
            ("dot of 16", lambda ring=ring, w=w, y=y: ring.dot(w, y), 16 * polynomials),
        ):
            yield _row("transform", f"n = {ring.n}, {case}", work, "polynomial", _best(call, quick))


def _masked_activation(limits: dict[str, float], quick: bool) -> Iterator[dict[str, Any]]:
    """Training's activation, channels last: one pass forward (Z to X), one backward (Z and dX to dZ)."""
    site = MaskedActivation((64, 32, 32))
    site.mask.copy_(torch.rand(site.mask.shape) < 0.1)
    z = torch.randn(16, 64, 32, 32).contiguous(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(z)
    ours, reference = site(z), site.reference(z)[0]
    wanted = [z, site.aux, site.coefficients]

    def backward(x: torch.Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(x, wanted, gradient, retain_graph=True)

    cases: list[tuple[str, int, Callable[[], object], Callable[[], object]]] = [
        ("forward", 8, lambda: site(z), lambda: site.reference(z)),
        ("backward", 12, backward(ours), backward(reference)),
    ]
    for case, moved, call, other in cases:
        bound, theirs = (z.numel() * moved / limits["copy_bytes_per_s"], "copying"), (_best(other, quick, 0.1), "torch")
        yield _row("masked activation", case, z.numel(), "element", _best(call, quick), bound, theirs)


def _words(*shape: int) -> np.ndarray:
    """Public test data; timings do not depend on it."""
    return np.random.default_rng(1).integers(0, 2**64, shape, dtype=np.uint64)
