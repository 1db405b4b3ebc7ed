"""A block of memory is lent again when nobody looks into it any more, and not before."""

from __future__ import annotations

import gc
from collections import deque

import numpy as np
import pytest

from autorep.mpc import blocks
from autorep.mpc.kit import KitBuffer

SIZE = 4096


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SMALLEST", SIZE)
    monkeypatch.setattr(blocks, "LARGEST", 4 * SIZE)
    monkeypatch.setattr(blocks, "_SPARE", deque(maxlen=2))


def place(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


def test_a_block_is_lent_again_in_place() -> None:
    first = blocks.block(SIZE)
    where = place(first)
    del first
    assert place(blocks.block(SIZE)) == where


@pytest.mark.parametrize(
    "look",
    [
        lambda view: view,
        lambda view: view[100:200],
        lambda view: view.toreadonly()[8:].cast("Q"),
        lambda view: np.frombuffer(view, np.uint8),
        lambda view: np.frombuffer(view[64:], np.uint64)[3:7].reshape(2, 2).T,
        lambda view: np.asarray(view)[5:][::2].view(np.int8),
        lambda view: [np.frombuffer(view, np.uint16)[1:2]],
    ],
)
def test_whatever_looks_into_a_block_keeps_it(look) -> None:
    block = blocks.block(SIZE)
    where, left = place(block), look(block)
    del block
    gc.collect()
    others = [blocks.block(SIZE) for _ in range(4)]
    assert where not in {place(other) for other in others}
    del left, others
    gc.collect()
    assert len(blocks._SPARE) == 2, "no more than these are kept"


def test_only_a_block_of_the_same_size_is_lent_again_and_small_or_huge_ones_are_not_kept() -> None:
    for size in (SIZE - 1, SIZE, 4 * SIZE + 1):
        assert len(blocks.block(size)) == size
    assert [memory.nbytes for memory in blocks._SPARE] == [SIZE]
    assert len(blocks.block(2 * SIZE)) == 2 * SIZE
    assert {memory.nbytes for memory in blocks._SPARE} == {SIZE, 2 * SIZE}


def test_kits_in_memory_take_such_blocks() -> None:
    first = KitBuffer(SIZE)
    first.write(b"first")
    where, read = place(first.read()), first.read()
    del first, read
    second = KitBuffer(SIZE)
    second.write(b"second kit")
    assert bytes(second.read()) == b"second kit", "and nothing of the one before"
    second.seek(0)
    assert place(second.read()) == where
