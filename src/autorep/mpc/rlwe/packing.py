"""How a linear layer is laid out in polynomials: pure counting, read by protocol, cost model and tests.

A request polynomial holds u input channels, an answer v output channels; planes are `plane` positions apart, rows
`row` positions. The zero rows and columns of padding are shared by neighbours:

    input (c, y, x)         at  c·plane + y·row + x
    weight (o, c, tap a, b) at  o·u·plane + offset − c·plane − a·row − b
    output (o, i, j)        at  o·u·plane + offset + i·row + j,  offset = (u − 1)·plane + (largest a)·row + (largest b)

is exact modulo X**n + 1 when u·v·plane ≤ n. A stride splits the input into phases, which count as channels. A plane
larger than n is cut into bands of output rows, each with the input rows it needs. A group or a depthwise layer is a
layer with zero weights: an answer multiplies only the requests that its outputs read.

Rings too wide for one product take the weights in `digits` digits, each against an encryption of the correspondingly
shifted input. Answers are rounded to `answer_bits` bits a coefficient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from autorep.errors import ConfigError
from autorep.mpc.ring import packed_bytes
from autorep.mpc.rlwe.parameters import NOISE_DEVIATION, RESIDUE_BITS, linear_ring, polynomial_bytes
from autorep.program import ir

ROUNDING_PART = 6  # a cross term may be off by 2**-6 of a unit of the layer's input wire, in four deviations


@dataclass(frozen=True)
class Layer:
    """What a linear operation amounts to: a (grouped) convolution of ring elements."""

    name: str
    ring_bits: int
    weight_frac: int
    channels: int
    side: tuple[int, int]
    outputs: int
    out_side: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.outputs, self.channels // self.groups, *self.kernel)


def layer_of(op: ir.Conv | ir.Linear | ir.Affine, in_shape: ir.Shape) -> Layer:
    """The layer of an operation that reads `in_shape`."""
    if isinstance(op, ir.Conv):
        return Layer(
            op.name, op.bits, op.weight_frac, in_shape[0], (in_shape[1], in_shape[2]), op.shape[0],
            (op.shape[1], op.shape[2]), op.kernel, op.stride, op.padding, op.dilation, op.groups,
        )  # fmt: skip
    channels = in_shape[0]
    side = (1, 1) if isinstance(op, ir.Linear) else (in_shape[1], in_shape[2]) if len(in_shape) == 3 else (1, 1)
    groups = 1 if isinstance(op, ir.Linear) else channels
    one, none = (1, 1), (0, 0)
    return Layer(op.name, op.bits, op.weight_frac, channels, side, op.shape[0], side, one, one, none, one, groups)


@dataclass(frozen=True)
class Axis:
    """One direction: kernel index k reads input stride·i + dilation·k − padding = stride·(i + tap) + phase."""

    side: int
    out: int
    taps: tuple[tuple[int, int], ...]  # (phase, tap) of every kernel index
    length: int  # of one phase

    @classmethod
    def of(cls, side: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Axis:
        taps = tuple(divmod(dilation * k - padding, stride)[::-1] for k in range(kernel))
        return cls(side, out, taps, -(-side // stride))

    @property
    def phases(self) -> tuple[int, ...]:
        return tuple(sorted({phase for phase, _ in self.taps}))

    @property
    def most(self) -> int:
        return max(0, *(tap for _, tap in self.taps))

    @property
    def least(self) -> int:
        return min(0, *(tap for _, tap in self.taps))

    def pitch(self, out: int, length: int) -> int:
        """Distance of neighbours that share their zeros: the length and the larger overhang."""
        before, after = max(0, -self.least), max(0, out - 1 + self.most - (length - 1))
        return length + max(before, after)


@dataclass(frozen=True)
class Packing:
    """A layer's layout. `bands` > 1: bands of `rows` output rows, halo rows included in each band's input."""

    layer: Layer
    u: int
    v: int
    bands: int
    rows: int
    row: int
    plane: int
    digits: int
    answer_bits: int

    @property
    def axes(self) -> tuple[Axis, Axis]:
        return _axes(self.layer)

    @property
    def inputs(self) -> list[tuple[int, int, int]]:
        """(channel, row phase, column phase) of every packed channel."""
        vertical, horizontal = self.axes
        return [
            (c, i, j) for i in vertical.phases for j in horizontal.phases for c in range(self.layer.channels)
        ]  # fmt: skip

    @property
    def packed_channels(self) -> int:
        """Channels times phases."""
        vertical, horizontal = self.axes
        return self.layer.channels * len(vertical.phases) * len(horizontal.phases)

    @property
    def chunks(self) -> int:
        """Groups of u packed channels."""
        return -(-self.packed_channels // self.u)

    @property
    def groups(self) -> int:
        """Groups of v outputs."""
        return -(-self.layer.outputs // self.v)

    @property
    def requests(self) -> int:
        """Ciphertexts sent for one image and cross term."""
        return self.bands * self.chunks * self.digits

    @property
    def answers(self) -> int:
        """Ciphertexts sent back."""
        return self.bands * self.groups

    @cached_property
    def products(self) -> int:
        """Weight polynomials transformed for one cross term, whatever the number of images."""
        return self.digits * sum(len(self.chunks_of(group)) for group in range(self.groups))

    @property
    def request_bytes(self) -> int:
        return polynomial_bytes(linear_ring(), self.requests)

    def answer_bytes(self, images: int) -> int:
        """c₁ whole, c₀ where an output stands."""
        size = self.layer.outputs * self.layer.out_side[0] * self.layer.out_side[1]
        return packed_bytes(images * self.answers * linear_ring().n, self.answer_bits) + packed_bytes(
            images * size, self.answer_bits
        )

    def chunks_of(self, group: int) -> list[int]:
        """The chunks that some output of a group reads."""
        layer = self.layer
        per_group, outs = layer.channels // layer.groups, layer.outputs // layer.groups
        first, last = group * self.v, min(layer.outputs, (group + 1) * self.v) - 1
        low, high = first // outs * per_group, (last // outs + 1) * per_group  # channels
        phases = self.packed_channels // layer.channels
        wanted = {(phase * layer.channels + c) // self.u for phase in range(phases) for c in range(low, high)}
        return sorted(wanted)

    @property
    def digit_bits(self) -> int:
        return -(-self.layer.ring_bits // self.digits)

    @cached_property
    def offset(self) -> int:
        vertical, horizontal = self.axes
        return (self.u - 1) * self.plane + (vertical.most - self._first_row) * self.row + horizontal.most

    @property
    def _first_row(self) -> int:
        """Tap of a band's first stored row: 0, or the halo's first row."""
        return 0 if self.bands == 1 else self.axes[0].least

    def input_places(self) -> tuple[np.ndarray, np.ndarray]:
        """(position in (bands, chunks, n), position in the image (channels, rows, columns)) of every stored value."""
        layer, n = self.layer, linear_ring().n
        vertical, horizontal = self.axes
        places, sources = [], []
        stored = vertical.length if self.bands == 1 else self.rows + vertical.most - vertical.least
        channels = np.array(self.inputs)
        number = np.arange(len(channels))
        for band in range(self.bands):
            y = np.arange(stored)[None, :, None]
            x = np.arange(horizontal.length)[None, None, :]
            rows = layer.stride[0] * (y + self._first_row + band * self.rows * (self.bands > 1))
            source_y = rows + channels[:, 1, None, None]
            source_x = layer.stride[1] * x + channels[:, 2, None, None]
            inside = (source_y >= 0) & (source_y < layer.side[0]) & (source_x < layer.side[1])
            place = (band * self.chunks + number // self.u) * n + number % self.u * self.plane
            source = (channels[:, 0, None, None] * layer.side[0] + source_y) * layer.side[1] + source_x
            places.append((place[:, None, None] + y * self.row + x)[inside])
            sources.append(source[inside])
        return np.concatenate(places), np.concatenate(sources)

    def weight_places(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """(position in (chunks of the group, n), position in the weight) of every weight of a group of outputs."""
        layer, n = self.layer, linear_ring().n
        chunks = self.chunks_of(group)
        order = np.zeros(self.chunks, np.int64)
        order[chunks] = np.arange(len(chunks))
        per_group, outs = layer.channels // layer.groups, layer.outputs // layer.groups
        vertical, horizontal = self.axes
        phase_number = {phase: i for i, phase in enumerate(_phases(vertical, horizontal))}
        o = np.arange(group * self.v, min(layer.outputs, (group + 1) * self.v))[:, None]
        c = np.arange(per_group)[None, :]
        channel = o // outs * per_group + c
        places, sources = [], []
        for ky, (phase_y, tap_y) in enumerate(vertical.taps):
            for kx, (phase_x, tap_x) in enumerate(horizontal.taps):
                packed = phase_number[phase_y, phase_x] * layer.channels + channel
                tap = (tap_y - self._first_row) * self.row + tap_x
                inner = (o - group * self.v) * self.u * self.plane + self.offset - packed % self.u * self.plane - tap
                places.append((order[packed // self.u] * n + inner).reshape(-1))
                sources.append((((o * per_group + c) * layer.kernel[0] + ky) * layer.kernel[1] + kx).reshape(-1))
        return np.concatenate(places), np.concatenate(sources)

    def output_places(self) -> np.ndarray:
        """Position in (bands, groups, n) of every output (outputs, rows, columns)."""
        layer, n = self.layer, linear_ring().n
        o = np.arange(layer.outputs)[:, None, None]
        i, j = np.arange(layer.out_side[0])[None, :, None], np.arange(layer.out_side[1])[None, None, :]
        band, row = np.divmod(i, self.rows)
        answer = band * self.groups + o // self.v
        return answer * n + o % self.v * self.u * self.plane + self.offset + row * self.row + j

    @property
    def deviation(self) -> float:
        """Standard deviation of a cross term's error, in units of the ring: noise of the products, then rounding."""
        return _deviation(self.layer, self.v, self.digits, self.answer_bits)


def _phases(vertical: Axis, horizontal: Axis) -> Iterator[tuple[int, int]]:
    for i in vertical.phases:
        for j in horizontal.phases:
            yield i, j


@cache
def _axes(layer: Layer) -> tuple[Axis, Axis]:
    first, second = (
        Axis.of(layer.side[d], layer.out_side[d], layer.kernel[d], layer.stride[d], layer.padding[d], layer.dilation[d])
        for d in (0, 1)
    )
    return first, second


def _deviation(layer: Layer, v: int, digits: int, answer_bits: int) -> float:
    ring = linear_ring()
    bits = -(-layer.ring_bits // digits)
    terms = layer.channels // layer.groups * layer.kernel[0] * layer.kernel[1] * v * digits
    fresh = (NOISE_DEVIATION**2 + 1 / 12) ** 0.5  # the noise, and rounding the plaintext to q
    products = fresh * 2.0 ** (bits - 1) / 3**0.5 * terms**0.5 * 2.0**layer.ring_bits / ring.modulus
    rounding = 2.0 ** (layer.ring_bits - answer_bits) * ((1 + 2 * ring.n / 3) / 12) ** 0.5
    return (products**2 + rounding**2) ** 0.5


def tolerance(layer: Layer) -> float:
    """The largest deviation that a layer bears."""
    return 2.0 ** (layer.weight_frac - ROUNDING_PART) / 4


@cache
def pack(layer: Layer) -> Packing:
    """The layout with the fewest bytes whose error the layer bears; ConfigError where there is none."""
    best = min(_candidates(layer), key=lambda p: p.request_bytes + p.answer_bytes(1), default=None)
    if best is None:
        raise ConfigError(
            f"{layer.name}: no packing of this layer fits two-party preparation: rows of {layer.side[1]} values in a "
            f"ring of {layer.ring_bits} bits with {layer.weight_frac} fractional bits of weights; images must be at "
            "most about 1,300 wide, and weights need fractional bits; compile with other widths or use a dealer"
        )
    return best


def _candidates(layer: Layer) -> Iterator[Packing]:
    n, (vertical, horizontal) = linear_ring().n, _axes(layer)
    row = horizontal.pitch(horizontal.out, horizontal.length)
    channels = layer.channels * len(vertical.phases) * len(horizontal.phases)
    heights = dict.fromkeys(-(-vertical.out // bands) for bands in range(1, vertical.out + 1))
    tried = 0
    for rows in heights:
        bands = -(-vertical.out // rows)
        halo = rows + vertical.most - vertical.least
        plane = row * (vertical.pitch(vertical.out, vertical.length) if bands == 1 else halo)
        if plane > n:
            continue
        for u in range(1, min(channels, n // plane) + 1):
            v = min(layer.outputs, n // (u * plane))
            for digits in (1, 2, 3):
                if answer_bits := _answer_bits(layer, v, digits):
                    yield Packing(layer, u, v, bands, rows, row, plane, digits, answer_bits)
                    break
        tried += 1
        if tried == 3:
            return  # more bands only cost more


@cache
def _answer_bits(layer: Layer, v: int, digits: int) -> int:
    """The fewest bits of an answer's coefficient whose error is borne; 0 where none is."""
    limit = tolerance(layer)
    if -(-layer.ring_bits // digits) > RESIDUE_BITS:
        return 0  # a digit must be smaller than the primes
    for bits in range(max(1, layer.ring_bits - 12), 65):
        if _deviation(layer, v, digits, bits) <= limit:
            return bits
    return 0
