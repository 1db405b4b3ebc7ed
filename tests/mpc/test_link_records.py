"""Records of a link: what was sealed opens, in order and once, and nothing else does."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.mpc import link_records
from autorep.mpc.link_records import LENGTH_BYTES, TAG_BYTES, TEXT_LIMIT, Opener, Sealer, direction_keys

KEY = bytes(range(32))


def opened(opener: Opener, record: bytes, cuts: list[int] | None = None) -> bytes:
    """Give an opener the bytes of one record in pieces."""
    pieces, position = iter(cuts or []), 0
    while not opener.size:
        target = opener.target()
        count = min(next(pieces, 1 << 20), len(target), len(record) - position)
        assert count, "the record ended before it was whole"
        target[:count] = record[position : position + count]
        opener.advance(count)
        position += count
    assert position == len(record)
    text = memoryview(bytearray(opener.size))
    opener.open_into(text)
    return bytes(text)


@given(texts=st.lists(st.binary(min_size=1, max_size=300), max_size=8), cuts=st.lists(st.integers(1, 50), max_size=20))
@settings(max_examples=60, deadline=None)
def test_records_open_in_order_however_they_are_cut(texts: list[bytes], cuts: list[int]) -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    for text in texts:
        record = bytes(sealer.seal(text))
        assert len(record) == LENGTH_BYTES + len(text) + TAG_BYTES
        assert opened(opener, record, cuts) == text


@given(texts=st.lists(st.binary(min_size=1, max_size=90), max_size=8), cuts=st.lists(st.integers(1, 200), max_size=20))
@settings(max_examples=60, deadline=None)
def test_records_open_in_order_where_more_is_read_than_one_has(texts: list[bytes], cuts: list[int]) -> None:
    """The bytes of all records as one stream, of which an opener may take what all texts together need at least."""
    sealer, opener = Sealer(KEY), Opener(KEY)
    stream, found, pieces = b"".join(bytes(sealer.seal(text)) for text in texts), [], iter(cuts)
    left = sum(len(text) for text in texts)
    while left:
        if not opener.size:
            target = opener.target(left)
            count = min(next(pieces, 1 << 20), len(target), len(stream))
            target[:count], stream = stream[:count], stream[count:]
            opener.advance(count)
            continue
        text = memoryview(bytearray(opener.size))
        opener.open_into(text)
        found.append(bytes(text))
        left -= len(text)
    assert found == texts
    assert not stream


@given(text=st.binary(min_size=1, max_size=60), data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_changed_bit_is_noticed(text: bytes, data: st.DataObject) -> None:
    record = bytearray(Sealer(KEY).seal(text))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises((ConnectionError, AssertionError)):  # a longer length waits for more, a shorter one fails
        opened(Opener(KEY), bytes(record))


def test_repeated_reordered_and_lost_records_are_noticed() -> None:
    sealer = Sealer(KEY)
    first, second = bytes(sealer.seal(b"one")), bytes(sealer.seal(b"two"))
    opener = Opener(KEY)
    opened(opener, first)
    with pytest.raises(ConnectionError, match="repeated"):
        opened(opener, first)
    with pytest.raises(ConnectionError):
        opened(Opener(KEY), second)


def test_the_other_directions_key_opens_nothing() -> None:
    with pytest.raises(ConnectionError):
        opened(Opener(bytes(32)), bytes(Sealer(KEY).seal(b"text")))


def test_keys_of_the_directions_come_from_both_secrets_by_the_book() -> None:
    client, server = bytes(range(32)), bytes(range(32, 64))
    info = b"client to server, server to client"
    extracted = hmac.digest(b"autorep records 2", client + server, hashlib.sha256)  # RFC 5869, by hand
    first = hmac.digest(extracted, info + b"\x01", hashlib.sha256)
    second = hmac.digest(extracted, first + info + b"\x02", hashlib.sha256)
    assert direction_keys(client, server) == (first, second)
    seen = {*direction_keys(client, server), *direction_keys(server, client), *direction_keys(client, client)}
    assert len(seen) == 6, "an end that sends back what it was sent gets no direction to use the other's key"


def test_keys_are_replaced_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_records, "_RECORDS_PER_KEY", 4)
    sealer, opener = Sealer(KEY), Opener(KEY)
    keys = set()
    for number in range(13):
        text = f"record {number}".encode()
        assert opened(opener, bytes(sealer.seal(text))) == text
        assert sealer._key == opener._key
        keys.add(sealer._key)
    assert len(keys) == 4
    late, first = bytes(sealer.seal(b"late")), Opener(KEY)
    first._number = 13
    with pytest.raises(ConnectionError):
        opened(first, late)


def test_equal_texts_look_different() -> None:
    sealer = Sealer(KEY)
    assert bytes(sealer.seal(bytes(100))) != bytes(sealer.seal(bytes(100)))


@pytest.mark.parametrize("size", [0, TEXT_LIMIT + 1, 2**32 - 1])
def test_impossible_lengths_are_refused_at_once(size: int) -> None:
    opener = Opener(KEY)
    opener.target()[:] = size.to_bytes(LENGTH_BYTES, "little")
    with pytest.raises(ConnectionError, match=f"{size} bytes"):
        opener.advance(LENGTH_BYTES)
