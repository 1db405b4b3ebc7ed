"""Small random Programs written by hand, and the dealer's masks as the fixed interpreter's rounding."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from autorep.modes import Program
from autorep.mpc.dealer import Dealer
from autorep.mpc.dealt import Dealing
from autorep.mpc.local import LocalPair, join_output, share_input
from autorep.mpc.operations import correlate
from autorep.mpc.party import Party, PreparedQuery
from autorep.mpc.ring import reduce
from autorep.program import ir
from autorep.program.answer import answering

F, BITS = 16, 44


class Builder:
    """Appends operations with random parameters; the last wire or sum is always the current value."""

    def __init__(self, seed: int, shape: tuple[int, ...] = (3, 8, 8)) -> None:
        self.rng = np.random.default_rng(seed)
        self.parameters: dict[str, np.ndarray] = {}
        self.ops: list[ir.Op] = [ir.Input(name="input", inputs=(), shape=shape, kind="wire", bits=64, frac=F)]

    @property
    def last(self) -> ir.Op:
        return self.ops[-1]

    def add(self, cls: type[ir.Op], inputs=None, **fields) -> ir.Op:
        name = f"{cls.__name__.lower()}{len(self.ops)}"
        inputs = (self.last.name,) if inputs is None else tuple(op.name for op in inputs)
        op = cls(name=name, inputs=inputs, **fields)
        self.ops.append(op)
        return op

    def conv(self, channels: int, kernel=3, stride=1, groups=1, dilation=1, bits=None) -> ir.Op:
        source = self.last
        padding = dilation * (kernel // 2)
        side = [(s + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for s in source.shape[1:]]
        fan_in = source.shape[0] // groups * kernel * kernel
        op = self.add(
            ir.Conv, shape=(channels, *side), kind="sum", bits=bits or min(BITS, source.bits), frac=2 * F,
            weight_frac=F, kernel=(kernel, kernel), stride=(stride, stride), padding=(padding, padding),
            dilation=(dilation, dilation), groups=groups,
        )  # fmt: skip
        shape = (channels, source.shape[0] // groups, kernel, kernel)
        self.parameters[f"{op.name}.weight"] = self.rng.normal(0, fan_in**-0.5, shape)
        self.parameters[f"{op.name}.bias"] = self.rng.normal(0, 0.3, channels)
        return op

    def stem(self, channels: int) -> ir.Op:
        self.conv(channels, bits=64)
        return self.add(
            ir.Requantize,
            shape=self.last.shape,
            kind="wire",
            bits=BITS,
            frac=F,
            shift=F,
            open_bits=64,
            one_round=True,
        )

    def requantize(self) -> ir.Op:
        return self.add(
            ir.Requantize, shape=self.last.shape, kind="wire", bits=BITS, frac=F, shift=F, open_bits=BITS,
            one_round=False,
        )  # fmt: skip

    def activation(self, kept: float, **fields) -> ir.Op:
        shape = self.last.shape
        flags = self.rng.random(int(np.prod(shape))) < kept
        options = {"kept_frac": F, "window": 22, **fields}
        op = self.add(
            ir.Activation, shape=shape, kind="wire", bits=BITS, frac=F, open_bits=BITS, in_frac=2 * F,
            kept=np.flatnonzero(flags), **options,
        )  # fmt: skip
        for name, low, high in (("a", 0.0, 0.3), ("b", 0.3, 0.7), ("c", 0.0, 0.3)):
            if op.quad_count:
                self.parameters[f"{op.name}.{name}"] = self.rng.uniform(low, high, shape[0])
        return op

    def sign(self, **fields) -> ir.Op:
        """Of the last sum, compared at 8 fractional bits; the wire has as many as all others."""
        options = {"kept_frac": 8, "window": 15, **fields}
        return self.add(
            ir.Sign, shape=self.last.shape, kind="wire", bits=BITS, frac=F, open_bits=BITS, in_frac=2 * F, **options
        )

    def affine(self) -> ir.Op:
        op = self.add(ir.Affine, shape=self.last.shape, kind="sum", bits=BITS, frac=2 * F, weight_frac=F)
        self.parameters[f"{op.name}.weight"] = self.rng.normal(0, 1, op.shape[0])
        self.parameters[f"{op.name}.bias"] = self.rng.normal(0, 1, op.shape[0])
        return op

    def residual(self, *sources: ir.Op) -> ir.Op:
        return self.add(ir.Add, (self.last, *sources), shape=self.last.shape, kind="sum", bits=BITS, frac=2 * F)

    def sum_pool(self, kernel: int) -> ir.Op:
        source = self.last
        shape = (source.shape[0], *(s // kernel for s in source.shape[1:]))
        return self.add(
            ir.SumPool, shape=shape, kind=source.kind, bits=source.bits, frac=source.frac,
            kernel=(kernel, kernel), stride=(kernel, kernel),
        )  # fmt: skip

    def max_pool(self, kernel: int, stride: int, padding: int) -> ir.Op:
        source = self.last
        shape = (source.shape[0], *((s + 2 * padding - kernel) // stride + 1 for s in source.shape[1:]))
        return self.add(
            ir.MaxPool, shape=shape, kind="wire", bits=source.bits, frac=F, kernel=(kernel, kernel),
            stride=(stride, stride), padding=(padding, padding), window=22,
        )  # fmt: skip

    def product(self, x: ir.Op, gate: ir.Op) -> ir.Op:
        return self.add(ir.Product, (x, gate), shape=x.shape, kind="sum", bits=BITS, frac=2 * F)

    def concat(self, *sources: ir.Op) -> ir.Op:
        shape = (sum(s.shape[0] for s in sources), *sources[0].shape[1:])
        first = sources[0]
        return self.add(ir.Concat, sources, shape=shape, kind=first.kind, bits=first.bits, frac=first.frac)

    def head(self, classes: int) -> ir.Op:
        size = self.last.size
        self.add(ir.Flatten, shape=(size,), kind=self.last.kind, bits=self.last.bits, frac=self.last.frac)
        op = self.add(ir.Linear, shape=(classes,), kind="sum", bits=BITS, frac=2 * F, weight_frac=F)
        self.parameters[f"{op.name}.weight"] = self.rng.normal(0, size**-0.5, (classes, size))
        self.parameters[f"{op.name}.bias"] = self.rng.normal(0, 0.3, classes)
        return op

    def program(self) -> Program:
        return Program(ops=tuple(self.ops), parameters=self.parameters, model_id="00" * 16)


def mixed_program(seed: int, kept: float = 0.3) -> Program:
    """Every operation at least once."""
    b = Builder(seed)
    stem = b.stem(8)
    b.conv(8)
    b.activation(kept)
    b.conv(8)
    b.residual(stem)
    first = b.activation(kept)
    b.affine()
    b.activation(kept, knots=(0, 6 << F), slopes=(1, -1))  # ReLU6
    pooled = b.max_pool(2, 2, 0)
    b.conv(8, groups=4)
    b.requantize()
    b.sum_pool(4)
    b.conv(8, kernel=1)
    gate = b.activation(1.0, kept_frac=9, knots=(-512, 0, 512), slopes=(16, 32, -48), offset=1 << 14, window=16)
    b.product(pooled, gate)
    b.requantize()
    b.concat(b.last, pooled)
    b.conv(6, stride=2, dilation=1)
    b.activation(kept)
    b.conv(4)
    b.sign()
    b.head(5)
    assert first.kind == "wire"
    return b.program()


def class_program(seed: int) -> Program:
    """A small network of twelve classes that answers with the class alone."""
    b = Builder(seed, shape=(1, 4, 4))
    b.stem(4)
    b.conv(4)
    b.activation(0.5)
    b.head(12)
    facts = {"feature_energy": 64 * 0.5, "output_limit": 100.0}
    return answering(dataclasses.replace(b.program(), info=facts), "class")


@contextmanager
def watched_dealer() -> Iterator[dict[str, tuple[tuple[np.ndarray, ...], Any, np.ndarray | None]]]:
    """Operands and result, in the clear, of every correlation that dealers draw meanwhile, and what they owe of it."""
    seen: dict[str, tuple[tuple[np.ndarray, ...], Any, np.ndarray | None]] = {}
    original = Dealing.draw

    def spy(self, correlation, *operands):
        result = original(self, correlation, *operands)
        seen[correlation.label] = tuple(np.copy(operand) for operand in operands), result, self._owed[1]
        return result

    with patch.object(Dealing, "draw", spy):
        yield seen


class DealtRounding:
    """The masks that a dealer uses with known seeds."""

    def __init__(self, dealer: Dealer, seeds: tuple[bytes, bytes], batch: int) -> None:
        self._program, self._wires = dealer.program, {}

        def keeping_all(program, operations, source, keep):
            materials, kept = correlate(program, operations, source, {op.name for op in program.ops})
            self._wires.update(kept)
            return materials, {}

        with watched_dealer() as self._seen, patch("autorep.mpc.dealer.correlate", keeping_all):
            dealer.deal_to((io.BytesIO(), io.BytesIO()), batch, seeds)

    def mask(self, name, step, shape, bits, shift) -> np.ndarray:
        if step == "wire":
            total = reduce(self._wires[self._program[name].inputs[0]], bits)
        else:
            total = self._seen[f"{name}/r" if step == "a" else f"{name}/quad/z"][1]
        assert int(total.max(initial=0)) < 1 << bits
        return total.reshape(shape)


def prepare(party: Party, kit: bytes) -> PreparedQuery:
    """A party's offline part from its kit."""
    return party.prepare(party.source(kit))


def run_known(pair: LocalPair, x: np.ndarray, seeds: tuple[bytes, bytes]) -> np.ndarray:
    """Ring elements of the answer, with a dealer whose seeds the test knows."""
    sinks = io.BytesIO(), io.BytesIO()
    pair.dealer.deal_to(sinks, len(x), seeds)
    inputs = share_input(pair.program, x)

    def one(i: int) -> np.ndarray:
        party = pair.parties[i]
        return party.run(pair._links[i], prepare(party, sinks[i].getvalue()), inputs[i])

    share0, share1 = pair._both(one)
    return (share0 + share1) & np.uint64((1 << pair.program.output.bits) - 1)


__all__ = [
    "Builder",
    "Dealer",
    "DealtRounding",
    "class_program",
    "join_output",
    "mixed_program",
    "prepare",
    "run_known",
    "watched_dealer",
]
