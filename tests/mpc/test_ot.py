"""Oblivious transfer between two parties: base transfers, correlations, and every tool against plain arithmetic."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.errors import ProtocolError
from autorep.mpc.ot import base
from autorep.mpc.ot.extension import Modulus, Transfers, padded, power, receiver_bytes, sender_bytes
from autorep.mpc.ot.tools import BitTools
from autorep.mpc.transport import FRAME_OVERHEAD, Ledger, memory_pair
from tests.chance import uneven

CASES = settings(max_examples=10)
T = Modulus(2147352577 * 2147205121)


class TwoEnds:
    """Both parties' tools over an in-memory link."""

    def __init__(self) -> None:
        self.links = memory_pair(120.0)
        self.pool = ThreadPoolExecutor(2)
        self.transfers = self.run(lambda i: Transfers(self.links[i]))
        self.tools = [BitTools(i, self.transfers[i]) for i in (0, 1)]

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        def guarded(i: int) -> Any:
            try:
                return work(i)
            except Exception:
                self.links[i].abort("test")
                raise

        return [future.result(200) for future in [self.pool.submit(guarded, i) for i in (0, 1)]]


@pytest.fixture(scope="module")
def ends() -> Iterator[TwoEnds]:
    both = TwoEnds()
    yield both
    both.pool.shutdown(wait=False)


def bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2, shape, dtype=np.uint64)


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


def test_every_offered_key_is_on_the_curve_and_of_prime_order() -> None:
    order = 2**252 + 27742317777372353535851937790883648493
    for u in (int.from_bytes(base._oblivious(), "little") for _ in range(4)):
        assert pow((u**3 + 486662 * u * u + u) % base._FIELD, (base._FIELD - 1) // 2, base._FIELD) == 1
        assert _ladder(order, u) == 0


def _ladder(scalar: int, u: int) -> int:
    """The denominator of scalar·P: 0 for the neutral element; Montgomery's ladder in Python integers."""
    p = base._FIELD
    x2, z2, x3, z3 = 1, 0, u, 1
    for place in reversed(range(scalar.bit_length())):
        swap = scalar >> place & 1
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % p, u * (da - cb) ** 2 % p
        e = aa - bb
        x2, z2 = aa * bb % p, e * (aa + 121665 * e) % p
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return z2


def test_trees_agree_except_in_the_missing_leaf() -> None:
    """The sender's keys are the receiver's, ordered by x ^ delta; the missing one it does not have."""
    choices = [secrets.randbits(1) for _ in range(base.TRANSFERS)]
    private = [X25519PrivateKey.generate() for _ in choices]
    offered = b"".join(base._pair(key.public_key().public_bytes_raw(), bit) for key, bit in zip(private, choices))
    trees = [base._grow(secrets.token_bytes(16)) for _ in range(32)]
    answer = base._encrypt_sums(trees, offered)
    assert (len(offered), len(answer)) == (base.FIRST_BYTES, base.SECOND_BYTES)
    keys, delta = base._punctured(private, choices, offered, answer)
    number = int(delta[0]) | int(delta[1]) << 64
    for block in range(32):
        hole = number >> (4 * block) & 15
        for y in range(16):
            equal = keys.reshape(32, 16, 16)[block, y].tobytes() == trees[block][-1][y ^ hole]
            assert equal == (y != 0)


def test_a_key_of_low_order_is_refused() -> None:
    trees = [base._grow(bytes(16))] * 32
    with pytest.raises(ProtocolError, match="low order"):
        base._encrypt_sums(trees, bytes(base.FIRST_BYTES))


@CASES
@given(st.integers(1, 400), st.integers(0, 10**6), st.sampled_from([(1,), (64,), (44, 16), (0, 1), (0, 64, 7)]))
def test_shares_add_up_to_choice_times_value(ends: TwoEnds, count: int, seed: int, widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    parts = [power(width) if width else T for width in widths]
    values = [[rng.integers(0, part.value, count, dtype=np.uint64) for part in parts] for _ in (0, 1)]
    choices = [bits(rng, count) for _ in (0, 1)]
    results = ends.run(lambda i: ends.transfers[i].both("t", choices[i], values[i], parts))
    for sender in (0, 1):
        for number, part in enumerate(parts):
            mine, theirs = results[sender][0][number], results[1 - sender][1][number]
            expected = [int(c) * int(x) % part.value for c, x in zip(choices[1 - sender], values[sender][number])]
            assert [(int(a) + int(b)) % part.value for a, b in zip(mine, theirs)] == expected
            assert mine.max() < part.value
            assert theirs.max() < part.value


def test_ledger_equals_the_formulas(ends: TwoEnds) -> None:
    rng, parts = np.random.default_rng(0), [power(44), T]
    for link in ends.links:
        link.ledger = Ledger()
    for count in (1, 127, 128, 129, 1000):
        ends.run(lambda i, n=count: ends.transfers[i].both(f"n{n}", bits(rng, n), [words(rng, n) % 5] * 2, parts))
        layers = ends.links[0].ledger.layers("online")
        assert layers[f"n{count}/choose"].sent == receiver_bytes(count) + FRAME_OVERHEAD == 4 * padded(count) + 32
        assert layers[f"n{count}/values"].received == sender_bytes(count, parts) + FRAME_OVERHEAD


def test_what_is_sent_is_independent_of_choices_and_values() -> None:
    """χ² of every byte sent, for choices and values all zero and all one: uniform in both cases."""
    for fill in (0, 1):
        both = TwoEnds()
        sent: list[bytes] = []
        original = both.links[0].exchange

        def spy(label, payload, expect, original=original, sent=sent):
            sent.append(bytes(payload))
            return original(label, payload, expect)

        both.links[0].exchange = spy  # type: ignore[method-assign]
        n = 20_000
        choices, values = np.full(n, fill, np.uint64), np.full(n, fill, np.uint64)
        both.run(lambda i, b=both, c=choices, v=values: b.transfers[i].both("t", c, [v], [power(64)]))
        for message in sent:
            assert not uneven(np.frombuffer(message, np.uint8))
        both.pool.shutdown(wait=False)


def test_no_number_of_a_transfer_is_used_twice(ends: TwoEnds) -> None:
    """The same choices and values, sent again, have nothing in common with what was sent before."""
    sent: list[bytes] = []
    original = ends.links[0].exchange

    def spy(label: str, payload: Any, expect: int) -> memoryview:
        sent.append(bytes(payload))
        return original(label, payload, expect)

    ends.links[0].exchange = spy  # type: ignore[method-assign]
    ones = np.ones(1280, np.uint64)
    for _ in range(2):
        ends.run(lambda i: ends.transfers[i].both("t", ones, [ones], [power(64)]))
    ends.links[0].exchange = original  # type: ignore[method-assign]
    for first, second in zip(sent[:2], sent[2:]):
        assert not np.intersect1d(np.frombuffer(first, np.uint64), np.frombuffer(second, np.uint64)).size


@CASES
@given(st.integers(1, 300), st.integers(0, 10**6))
def test_tools_on_bits(ends: TwoEnds, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = [bits(rng, count) for _ in (0, 1)], [bits(rng, count) for _ in (0, 1)]
    conjunction = ends.run(lambda i: ends.tools[i].both_bits("and", x[i], y[i]))
    assert np.array_equal(conjunction[0] ^ conjunction[1], (x[0] ^ x[1]) & (y[0] ^ y[1]))
    for ring in (power(16), power(64), T):
        additive = ends.run(lambda i, r=ring: ends.tools[i].to_ring("ring", x[i], r))
        assert [(int(a) + int(b)) % ring.value for a, b in zip(*additive)] == (x[0] ^ x[1]).tolist()
    parts = [power(41), T]
    shared = [[rng.integers(0, part.value, count, dtype=np.uint64) for part in parts] for _ in (0, 1)]
    chosen = ends.run(lambda i: ends.tools[i].select("mux", x[i], shared[i], parts))
    for number, part in enumerate(parts):
        expected = [
            int(b) * (int(u) + int(v)) % part.value
            for b, u, v in zip(x[0] ^ x[1], shared[0][number], shared[1][number])
        ]
        assert [(int(a) + int(b)) % part.value for a, b in zip(chosen[0][number], chosen[1][number])] == expected


@CASES
@given(st.integers(1, 100), st.integers(1, 28), st.integers(0, 10**6))
def test_adder(ends: TwoEnds, count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mine = [rng.integers(0, 1 << width, count, dtype=np.uint64) for _ in (0, 1)]
    mine[0][0] = mine[1][0] = (1 << width) - 1
    (bits0, carry0), (bits1, carry1) = ends.run(lambda i: ends.tools[i].add("sum", mine[i], width))
    total = mine[0] + mine[1]
    assert np.array_equal(carry0 ^ carry1, total >> np.uint64(width))
    for place, (a, b) in enumerate(zip(bits0, bits1)):
        assert np.array_equal(a ^ b, (total >> np.uint64(place)) & np.uint64(1))


@CASES
@given(st.integers(1, 20), st.sampled_from([8, 44, 64]), st.integers(0, 10**6))
def test_gilboa_products(ends: TwoEnds, count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = [words(rng, count) for _ in (0, 1)], [words(rng, count) for _ in (0, 1)]
    shares = ends.run(lambda i: ends.tools[i].products("product", x[i], y[i], width))
    cut = np.uint64((1 << width) - 1)
    assert np.array_equal((shares[0] + shares[1]) & cut, ((x[0] + x[1]) * (y[0] + y[1])) & cut)


def test_wrong_sized_message_stops_both() -> None:
    both = TwoEnds()
    with pytest.raises(ProtocolError, match="expected|stopped"):
        both.run(lambda i: both.tools[i].both_bits("and", *[np.zeros(100 + 200 * i, np.uint64)] * 2))
    assert all(link.failed for link in both.links)
