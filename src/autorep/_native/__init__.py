"""The few kernels that decide the speed: ring convolution, AES streams, comparisons, packing, activations.

Ring words are uint64 and arithmetic wraps modulo 2**64; a call with `bits` promises its low `bits` bits. Arrays must
be C-contiguous. Every call releases the interpreter lock. `set_threads` is module-wide and starts at 1. The environment
variable AUTOREP_SIMD sets the instruction-set level of a process as `set_simd` does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from autorep._native import _core, build
from autorep._native._core import get_threads, set_simd, set_threads, simd

__all__ = [
    "PackedConv",
    "PackedMatmul",
    "and_layer",
    "bit_planes",
    "dcf_eval",
    "dcf_gen",
    "dcf_key_bytes",
    "from_bit_planes",
    "gather",
    "gather_lifted",
    "get_threads",
    "keep_freed_memory",
    "mask_packed",
    "open_packed",
    "pack",
    "prg",
    "prg_sum",
    "quadratic_differences",
    "quadratic_material",
    "quadratic_share",
    "relu_share",
    "scatter_opened",
    "scatter_shift",
    "set_simd",
    "set_threads",
    "share_packed",
    "sign_eval",
    "sign_gen",
    "sign_key_bytes",
    "simd",
    "unpack",
]

build.check(_core)
if os.environ.get("AUTOREP_SIMD"):
    set_simd(os.environ["AUTOREP_SIMD"])

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Pair = tuple[int, int] | Sequence[int]
Algorithm = Literal["auto", "lean", "direct", "winograd", "winograd2", "winograd3", "winograd4"]
_NATIVE: dict[type[np.generic], np.dtype] = {kind: np.dtype(kind) for kind in (np.uint64, np.uint8, np.int64)}


def _check(name: str, array: np.ndarray, shape: Sequence[int | None], dtype: type[np.generic] = np.uint64) -> None:
    """`array` is a C-contiguous numpy array of `dtype` whose shape matches (None matches any length)."""
    if _plain(array, dtype) and len(shape) == array.ndim:  # the quick way to say yes: it is asked 2,000 times a query
        for want, have in zip(shape, array.shape):
            if want != have and want is not None:
                break
        else:
            return
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{name}: expected a numpy array of {np.dtype(dtype).name}, found {found}")
    if array.ndim != len(shape) or any(want is not None and want != have for want, have in zip(shape, array.shape)):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(f"{name}: expected shape ({wanted}), found {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: the array is not C-contiguous; pass numpy.ascontiguousarray(...)")


def _plain(array: np.ndarray, dtype: type[np.generic]) -> bool:
    return type(array) is np.ndarray and array.dtype is _NATIVE[dtype] and array.flags.c_contiguous


def _check_any_shape(name: str, array: np.ndarray, dtype: type[np.generic] = np.uint64) -> None:
    if not _plain(array, dtype):
        _check(name, array, (None,) * getattr(array, "ndim", 0), dtype)


def _check_bits(bits: int, most: int = 64) -> None:
    if not 1 <= bits <= most:
        raise ValueError(f"bits = {bits}: valid are 1 to {most}")


def _pair(name: str, value: Pair, least: int) -> tuple[int, int]:
    first, second = value
    if first < least or second < least:
        raise ValueError(f"{name} = {(first, second)}: both must be at least {least}")
    return int(first), int(second)


class PackedConv:
    """A convolution modulo 2**bits with a fixed weight, packed (and Winograd-transformed) once.

    weight is (O, C/groups, kh, kw); in_shape is (C, H, W) of one image. `run` takes batches (N, C, H, W) of any N.
    Bits of the result above `bits` are deterministic but meaningless: the caller masks. Algorithm "auto" is the fastest
    by estimate; "lean" may take half as long again where that saves memory; "winograd" is the best of its three tiles.
    """

    def __init__(
        self,
        weight: Words,
        in_shape: Sequence[int],
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        bits: int = 64,
        algorithm: Algorithm = "auto",
    ) -> None:
        channels, height, width = (int(length) for length in in_shape)
        if groups < 1 or channels % groups or (getattr(weight, "ndim", 0) and weight.shape[0] % groups):
            raise ValueError(f"groups = {groups} does not divide {channels} channels in and {weight.shape[0]} out")
        _check("weight", weight, (None, channels // groups, None, None))
        _check_bits(bits)
        sides = [*_pair("stride", stride, 1), *_pair("padding", padding, 0), *_pair("dilation", dilation, 1)]
        kernel = weight.shape[2:]
        out = [
            (length + 2 * sides[2 + i] - sides[4 + i] * (kernel[i] - 1) - 1) // sides[i] + 1
            for i, length in enumerate((height, width))
        ]
        if min(out) < 1 or weight.size == 0:
            raise ValueError(f"a {kernel} kernel (dilation {dilation}, padding {padding}) does not fit {in_shape}")
        if algorithm not in get_args(Algorithm):
            raise ValueError(f"algorithm = {algorithm!r}: valid are {', '.join(get_args(Algorithm))}")
        self._plan = _core.PackedConv(weight, channels, height, width, sides, groups, bits, algorithm)
        self.in_shape = (channels, height, width)
        self.out_shape = (weight.shape[0], out[0], out[1])
        self.bits = bits

    @property
    def algorithm(self) -> str:
        """What runs: direct, depthwise, or winograd2, winograd3, winograd4 (the tile's output side)."""
        return self._plan.algorithm

    @property
    def packed_bytes(self) -> int:
        """Memory the packed weight takes."""
        return self._plan.packed_bytes

    def run(self, x: Words, onto: Words | None = None, bias: Words | None = None) -> Words:
        """Convolve the batch x (N, C, H, W) into (N, O, Ho, Wo), plus `bias` (O,); added to `onto`, in place."""
        _check("x", x, (None, *self.in_shape))
        add = onto is not None
        if onto is None:
            onto = np.empty((x.shape[0], *self.out_shape), np.uint64)
        else:
            _check("onto", onto, (x.shape[0], *self.out_shape))
        if bias is not None:
            _check("bias", bias, self.out_shape[:1])
        self._plan.run(x, onto, add, bias)
        return onto


class PackedMatmul:
    """A matrix product modulo 2**bits with a fixed weight (O, F): x (N, F) -> (N, O)."""

    def __init__(self, weight: Words, bits: int = 64) -> None:
        _check("weight", weight, (None, None))
        outputs, features = weight.shape
        self._features, self._outputs = features, outputs
        # A 1x1 convolution over a single pixel; the batch takes the role of the pixels.
        self._plan = PackedConv(weight.reshape(outputs, features, 1, 1), (features, 1, 1), bits=bits)

    @property
    def packed_bytes(self) -> int:
        """Memory the packed weight takes."""
        return self._plan.packed_bytes

    def run(self, x: Words, onto: Words | None = None, bias: Words | None = None) -> Words:
        """x (N, F) times the weight's transpose, as (N, O), plus `bias` (O,); added to `onto`, in place."""
        _check("x", x, (None, self._features))
        if onto is not None:
            _check("onto", onto, (x.shape[0], self._outputs))
        shaped = None if onto is None else onto.reshape(x.shape[0], self._outputs, 1, 1)
        return self._plan.run(x.reshape(*x.shape, 1, 1), shaped, bias).reshape(x.shape[0], self._outputs)


def keep_freed_memory() -> bool:
    """Let this process reuse freed arrays instead of returning them to the system, where its C library can (glibc).

    Otherwise every new array of more than some 100 kB is mapped and cleared page by page, which takes several times
    longer than the kernel that fills it. For processes that go on for long: training, parties, dealers, servers.
    """
    return _core.keep_freed_memory()


def _key(key: bytes) -> Bytes:
    if len(key) != 16:
        raise ValueError(f"key: expected 16 bytes, found {len(key)}")
    return np.frombuffer(key, np.uint8)


def prg(key: bytes, out: Words, bits: int = 64) -> Words:
    """Fill `out` (any shape) with the AES-128-CTR key stream of `key` from counter 0, each word cut to `bits`."""
    _check_any_shape("out", out)
    _check_bits(bits)
    _core.prg(_key(key), out, bits)
    return out


def prg_sum(key0: bytes, key1: bytes, count: int, bits: int, less: Words | None = None) -> Words:
    """The sum modulo 2**bits of two keys' streams of `count` words, less some words."""
    _check_bits(bits)
    if less is not None:
        _check("less", less, (count,))
    out = np.empty(count, np.uint64)
    _core.prg_sum(_key(key0), _key(key1), bits, less, out)
    return out


def share_packed(value: Words, key: bytes, bits: int) -> Bytes:
    """value (any shape) less the stream of `key`, modulo 2**bits, as `pack` writes it, in one pass."""
    _check_any_shape("value", value)
    _check_bits(bits)
    out = np.empty(_packed_bytes(value.size, bits), np.uint8)
    _core.share_packed(value, _key(key), bits, out)
    return out


def _check_dcf(n: int, L: int, F: int) -> None:
    if not (1 <= n <= 64 and 1 <= L <= 64 and 0 <= F <= 64 and 2 * L + F <= 128):
        raise ValueError(f"DCF n={n}, L={L}, F={F}: valid are n, L in 1..64, F in 0..64 with 2L + F <= 128")


def _check_aes_keys(aes_keys: bytes) -> None:
    if len(aes_keys) != 32:
        raise ValueError(f"aes_keys: expected two keys of 16 bytes, found {len(aes_keys)} bytes")


def dcf_key_bytes(n: int, L: int, F: int) -> int:
    """Bytes of one key: n levels of 16 + ceil((2L+F)/8), right control bits, the leaf's correction."""
    _check_dcf(n, L, F)
    return _core.dcf_key_bytes(n, L, F)


def dcf_gen(alpha: Words, beta: Words, n: int, L: int, F: int, root0: Words, root1: Words, aes_keys: bytes) -> Bytes:
    """Keys (N, key_bytes), the same for both parties, for beta (N, 3) * [x < alpha] on n-bit numbers.

    root0 and root1 (N, 2) are the parties' independent random seeds; bit 0 of each first word is ignored. `aes_keys`,
    32 bytes, are the two public keys of the hash; they belong to one query alone.
    """
    _check_dcf(n, L, F)
    _check_aes_keys(aes_keys)
    _check("alpha", alpha, (None,))
    count = alpha.shape[0]
    _check("beta", beta, (count, 3))
    _check("root0", root0, (count, 2))
    _check("root1", root1, (count, 2))
    keys = np.empty((count, _core.dcf_key_bytes(n, L, F)), np.uint8)
    _core.dcf_gen(alpha, beta, n, L, F, root0, root1, np.frombuffer(aes_keys, np.uint8), keys)
    return keys


def dcf_eval(party: int, x: Words, n: int, L: int, F: int, root: Words, keys: Bytes, aes_keys: bytes) -> Words:
    """This party's share (N, 3) of beta * [x mod 2**n < alpha]; components live modulo 2**L, 2**L and 2**F."""
    _check_dcf(n, L, F)
    _check_aes_keys(aes_keys)
    _check_party(party)
    _check("x", x, (None,))
    _check("root", root, (x.shape[0], 2))
    _check("keys", keys, (x.shape[0], _core.dcf_key_bytes(n, L, F)), np.uint8)
    out = np.empty((x.shape[0], 3), np.uint64)
    _core.dcf_eval(party, x, n, L, F, root, keys, np.frombuffer(aes_keys, np.uint8), out)
    return out


def _check_sign(n: int) -> None:
    if not 1 <= n <= 63:
        raise ValueError(f"sign keys n={n}: valid are 1 to 63")


def sign_key_bytes(n: int) -> int:
    """Bytes of one short key: 16 for each of max(0, n - 7) levels, their right control bits and one more, 16."""
    _check_sign(n)
    return _core.sign_key_bytes(n)


def sign_gen(threshold: Words, n: int, root0: Words, root1: Words, aes_keys: bytes) -> Bytes:
    """Keys (N, key_bytes), the same for both parties, for bit n of x - threshold modulo 2**(n + 1).

    root0 and root1 (N, 2) are the parties' independent random seeds; bit 0 of each first word is ignored. `aes_keys`
    are as for `dcf_gen`.
    """
    _check_sign(n)
    _check_aes_keys(aes_keys)
    _check("threshold", threshold, (None,))
    count = threshold.shape[0]
    _check("root0", root0, (count, 2))
    _check("root1", root1, (count, 2))
    keys = np.empty((count, _core.sign_key_bytes(n)), np.uint8)
    _core.sign_gen(threshold, n, root0, root1, np.frombuffer(aes_keys, np.uint8), keys)
    return keys


def sign_eval(party: int, x: Words, n: int, root: Words, keys: Bytes, aes_keys: bytes) -> Words:
    """This party's xor share of that bit for every x, as one plane of `bit_planes`: ceil(N/64) words."""
    _check_sign(n)
    _check_aes_keys(aes_keys)
    _check_party(party)
    _check("x", x, (None,))
    _check("root", root, (x.shape[0], 2))
    _check("keys", keys, (x.shape[0], _core.sign_key_bytes(n)), np.uint8)
    plane = np.empty(-(-x.size // 64), np.uint64)
    _core.sign_eval(party, x, n, root, keys, np.frombuffer(aes_keys, np.uint8), plane)
    return plane


def _check_party(party: int) -> None:
    if party not in (0, 1):
        raise ValueError(f"party = {party}: valid are 0 and 1")


def _packed_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def pack(x: Words, bits: int, out: Bytes | None = None) -> Bytes:
    """The low `bits` bits of every word, without gaps, little-endian: ceil(n * bits / 8) bytes, to `out` if given."""
    _check_any_shape("x", x)
    _check_bits(bits)
    if out is None:
        out = np.empty(_packed_bytes(x.size, bits), np.uint8)
    else:
        _check("out", out, (_packed_bytes(x.size, bits),), np.uint8)
    _core.pack(x, bits, out)
    return out


def mask_packed(share: Words, mask: Words, offset: int, bits: int) -> Bytes:
    """mask += share + offset, in place and modulo 2**64, and that sum as `pack` writes it, in one pass."""
    _check_any_shape("mask", mask)
    _check("share", share, mask.shape)
    _check_bits(bits)
    out = np.empty(_packed_bytes(mask.size, bits), np.uint8)
    _core.mask_packed(share, mask, offset, bits, out)
    return out


def unpack(buffer: Bytes, n: int, bits: int) -> Words:
    """The n words that `pack` put into `buffer`."""
    _check_bits(bits)
    _check("buffer", buffer, (_packed_bytes(n, bits),), np.uint8)
    out = np.empty(n, np.uint64)
    _core.unpack(buffer, bits, out)
    return out


def open_packed(own: Words, peer: Bytes, bits: int) -> Words:
    """(own + unpack(peer)) modulo 2**bits in one pass, in the shape of `own`."""
    _check_any_shape("own", own)
    _check_bits(bits)
    _check("peer", peer, (_packed_bytes(own.size, bits),), np.uint8)
    out = np.empty(own.shape, np.uint64)
    _core.open_packed(own, peer, bits, out)
    return out


def bit_planes(x: Words, k: int) -> Words:
    """(k, ceil(n/64)): plane j holds bit j of every element, element i at bit i % 64 of word i // 64."""
    _check("x", x, (None,))
    _check_bits(k)
    planes = np.empty((k, -(-x.size // 64)), np.uint64)
    _core.bit_planes(x, planes)
    return planes


def from_bit_planes(planes: Words, n: int) -> Words:
    """The n words whose bits `bit_planes` spread out."""
    _check("planes", planes, (None, -(-n // 64)))
    _check_bits(planes.shape[0])
    x = np.empty(n, np.uint64)
    _core.from_bit_planes(planes, x)
    return x


def and_layer(party: int, d: Words, e: Words, a: Words, b: Words, c: Words) -> Words:
    """This party's share of x & y from opened d = x^a, e = y^b and its shares of the triple a, b, c = a&b.

    c ^ (d & b) ^ (e & a), and party 0 adds d & e. Any shape, the same for all.
    """
    _check_party(party)
    _check_any_shape("d", d)
    for name, array in (("e", e), ("a", a), ("b", b), ("c", c)):
        _check(name, array, d.shape)
    out = np.empty(d.shape, np.uint64)
    _core.and_layer(party, d, e, a, b, c, out)
    return out


def quadratic_share(
    opened: Words,
    index: Index,
    per_channel: int,
    bits: int,
    shift: int,
    p0: Words,
    p1: Words,
    q0: Words,
    q1: Words,
    a: Words,
    b: Words,
    c: Words,
    mask: Words,
) -> Words:
    """This party's masked share (N, k) of a t² + b t + c at the k positions `index` of each opened image (N, size).

    With y the opened pre-activation modulo 2**bits, c1 = 1 - msb(y), T = (y >> shift) - 2**(bits-2-shift), and P, Q
    the alternative (p0 and q0, or p1 and q1) that c1 selects: a T² - 2 T P + Q + b T + c + mask modulo 2**64.
    The coefficients have one entry per channel of `per_channel` elements.
    """
    _check("opened", opened, (None, None))
    _check("index", index, (None,), np.int64)
    rows = (opened.shape[0], index.shape[0])
    for name, array in (("p0", p0), ("p1", p1), ("q0", q0), ("q1", q1), ("mask", mask)):
        _check(name, array, rows)
    channels = -(-opened.shape[1] // per_channel)
    for name, array in (("a", a), ("b", b), ("c", c)):
        _check(name, array, (channels,))
    _check_bits(bits)
    if not 0 <= shift <= bits - 2:
        raise ValueError(f"shift = {shift}: valid are 0 to bits - 2 = {bits - 2}")
    out = np.empty(rows, np.uint64)
    _core.quadratic_share(opened, index, per_channel, bits, shift, p0, p1, q0, q1, a, b, c, mask, out)
    return out


QUADRATIC_PARTS = (3, 7)  # without and with the wrap bit


def quadratic_material(
    sources: Sequence[bytes] | Sequence[Bytes],
    bits: Sequence[int],
    shape: tuple[int, int],
    index: Index,
    per_channel: int,
    a: Words,
    b: Words,
    power: int,
) -> tuple[Words, Words, Words, Words]:
    """A party's (p0, p1, q0, q1), `shape` (N, k) each, from its shares of a dealer's parts, in one pass.

    `sources` are those shares of R, αR, R² and, where the wrap bit enters, m, αm, Rm, W: keys (bytes) whose streams
    they are, or packed as `pack` does, `bits[i]` bits a word. With a, b the opened coefficients of each channel:
    p0 = a R - αR,  p1 = p0 - ((a m - αm) << power),
    q0 = a R² - b R,  q1 = q0 + ((a ((m << power) - 2 Rm) + b m + W) << power).
    """
    count, expanded = shape[0] * shape[1], isinstance(sources[0], bytes)
    _check_parts(bits, len(sources), index, shape, a, b)
    arrays = [_key(source) if isinstance(source, bytes) else source for source in sources]
    for i, array in enumerate(arrays):
        _check(f"sources[{i}]", array, (16 if expanded else _packed_bytes(count, bits[i]),), np.uint8)
    p0, q0 = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
    wraps = len(sources) == max(QUADRATIC_PARTS)
    p1, q1 = (np.empty(shape, np.uint64), np.empty(shape, np.uint64)) if wraps else (p0, q0)
    _core.quadratic_material(arrays, expanded, list(bits), index, per_channel, a, b, power, p0, p1, q0, q1)
    return p0, p1, q0, q1


def quadratic_differences(
    r: Words,
    keys: Sequence[bytes],
    widths: Sequence[int],
    index: Index,
    per_channel: int,
    alpha: Words,
    beta: Words,
    bits: int,
    shift: int,
) -> tuple[list[Bytes], Words]:
    """A dealer's parts for masks r (N, k) modulo 2**bits, less the streams of `keys`, packed to `widths`, in one pass.

    With R = r >> shift, m = msb(r), 2**power = 2**(bits - shift) and α, β of each channel: R, αR, R² and, if there are
    seven keys, m, αm, Rm, α(2Rm - m 2**power) - βm. The second result is βR - αR², (N, k), as it is.
    """
    _check("r", r, (None, index.shape[0]))
    _check_parts(widths, len(keys), index, (r.shape[0], r.shape[1]), alpha, beta)
    outs = [np.empty(_packed_bytes(r.size, width), np.uint8) for width in widths]
    rest = np.empty(r.shape, np.uint64)
    _core.quadratic_differences(
        r, [_key(key) for key in keys], list(widths), index, per_channel, alpha, beta, bits, shift, outs, rest
    )
    return outs, rest


def _check_parts(
    bits: Sequence[int], parts: int, index: Index, shape: tuple[int, int], one: Words, other: Words
) -> None:
    if parts not in QUADRATIC_PARTS or len(bits) != parts:
        raise ValueError(f"{parts} parts of {len(bits)} widths: valid are 3 and 7 of each")
    for width in bits:
        _check_bits(width)
    _check("index", index, (shape[1],), np.int64)
    _check("coefficients", one, (None,))
    _check("coefficients", other, one.shape)


def relu_share(
    T: Words,
    c1: Words,
    sign: Words,
    sign_bit: int,
    one: int,
    v: Words | None,
    R: Words,
    m: Words,
    s: Words,
    sR: Words,
    sm: Words,
    L: int,
    shift: int,
) -> Words:
    """This party's share of relu(t) modulo 2**L (the caller masks), from its comparison output v (n, 3), or zeros.

    (d, dR, dm) = v + (s, sR, sm), replaced by (one - d, R - dR, m - dm) where bit `sign_bit` of sign is 0; `one` is 1
    at party 0, else 0.
    Result: T d - dR + (c1 dm << (L - shift)).
    """
    _check("T", T, (None,))
    if v is not None:
        _check("v", v, (T.shape[0], 3))
    for name, array in (("c1", c1), ("sign", sign), ("R", R), ("m", m), ("s", s), ("sR", sR), ("sm", sm)):
        _check(name, array, T.shape)
    _check_bits(L)
    if not 1 <= shift <= L:
        raise ValueError(f"shift = {shift}: valid are 1 to L = {L}")
    _check_bits(sign_bit + 1)
    out = np.empty(T.shape, np.uint64)
    _core.relu_share(T, c1, sign, sign_bit, int(one), v, R, m, s, sR, sm, L - shift, out)
    return out


def gather(source: Words, index: Index) -> Words:
    """source (N, size) at the positions `index` of each row, as (N, k)."""
    _check("source", source, (None, None))
    _check("index", index, (None,), np.int64)
    out = np.empty((source.shape[0], index.shape[0]), np.uint64)
    _core.gather(source, index, out)
    return out


def gather_lifted(source: Words, index: Index, bits: int, shift: int) -> tuple[Words, Words]:
    """Of the words y < 2**bits at the positions `index` of each row of source (N, size), each N * k words:

    (y >> shift) - 2**(bits - 2 - shift) modulo 2**64, and 1 - (bit bits - 1 of y).
    """
    _check("source", source, (None, None))
    _check("index", index, (None,), np.int64)
    _check_bits(bits)
    if not 0 <= shift <= bits - 2:
        raise ValueError(f"shift = {shift}: valid are 0 to bits - 2 = {bits - 2}")
    public, lifted = np.empty((2, source.shape[0] * index.shape[0]), np.uint64)
    _core.gather_lifted(source, index, bits, shift, public, lifted)
    return public, lifted


def scatter_shift(out: Words, index: Index, values: Words, shift: int = 0) -> None:
    """out[:, index] = values >> shift, in place; out is (N, size), values (N, k)."""
    _check("out", out, (None, None))
    _check("index", index, (None,), np.int64)
    _check("values", values, (out.shape[0], index.shape[0]))
    if not 0 <= shift <= 63:
        raise ValueError(f"shift = {shift}: valid are 0 to 63")
    _core.scatter_shift(out, index, values, shift)


def scatter_opened(out: Words, index: Index, own: Words, peer: Bytes, bits: int, shift: int = 0) -> None:
    """`scatter_shift` of `open_packed(own, peer, bits)`, own (N, k), in one pass."""
    _check("out", out, (None, None))
    _check("index", index, (None,), np.int64)
    _check("own", own, (out.shape[0], index.shape[0]))
    _check_bits(bits)
    _check("peer", peer, (_packed_bytes(own.size, bits),), np.uint8)
    if not 0 <= shift <= 63:
        raise ValueError(f"shift = {shift}: valid are 0 to 63")
    _core.scatter_opened(out, index, own, peer, bits, shift)
