"""Two releases that compute differently, or lay kits out differently, do not get as far as an answer."""

from __future__ import annotations

import dataclasses
import io
from concurrent.futures import ThreadPoolExecutor

import pytest

from autorep import _native
from autorep.errors import HandshakeError, MaterialError
from autorep.mpc import formats, transport
from autorep.mpc.kit import HEADER_BYTES, TAG_BYTES, KitWriter, read_header
from autorep.mpc.local import LocalPair
from tests.mpc.programs import mixed_program

PINNED = {
    "streams": "4f77ca8a",
    "packing": "55519068",
    "bit planes": "346f6910",
    "comparison": "975d2f2d",
    "short comparison": "05b30b75",
}


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
def test_formats_are_those_of_this_release_at_every_level(level):
    """A change here is a change of format: older kits are refused, both servers and dealer must be updated."""
    try:
        _native.set_simd(level)
    except ValueError:
        pytest.skip(f"this processor has no {level}")
    try:
        assert formats.formats.__wrapped__() == PINNED
    finally:
        _native.set_simd("auto")


@pytest.mark.parametrize("name", ["prg", "pack", "bit_planes", "dcf_gen", "dcf_eval", "sign_gen", "sign_eval"])
def test_a_changed_construction_changes_its_fingerprint(monkeypatch, name):
    original = getattr(_native, name)

    def changed(*arguments):
        result = original(*arguments)
        result.reshape(-1)[0] ^= result.dtype.type(1)
        return result

    monkeypatch.setattr(_native, name, changed)
    found = formats.formats.__wrapped__()
    assert sum(found[key] != PINNED[key] for key in PINNED) == 1


def test_servers_with_other_formats_part_at_the_handshake(monkeypatch):
    left, right = transport.memory_pair()
    told = iter([PINNED, {**PINNED, "comparison": "00000000"}])
    monkeypatch.setattr(transport, "formats", lambda: next(told))
    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(transport.handshake, link, {"party": i}) for i, link in enumerate((left, right))]
        for outcome in outcomes:
            assert isinstance(outcome.exception(120), HandshakeError)
            assert "formats" in str(outcome.exception())


def rewritten(kit: bytes, body: bytes | None = None, **changes) -> bytes:
    """A kit with another header, consistent in itself."""
    body = kit[HEADER_BYTES:-TAG_BYTES] if body is None else body
    sink = io.BytesIO()
    writer = KitWriter(sink, dataclasses.replace(read_header(kit), body_bytes=len(body), **changes))
    writer.section(body)
    writer.finish()
    return sink.getvalue()


def test_kits_of_another_layout_or_length_are_refused_before_use():
    program = mixed_program(6)
    with LocalPair(program) as pair:
        kit, party = bytes(pair.dealer.deal(1).kits[1]), pair.parties[1]
        body = kit[HEADER_BYTES:-TAG_BYTES]
        assert rewritten(kit) == kit
        for bad in (
            rewritten(kit, layout=bytes(8)),
            rewritten(kit, body[:-1]),
            rewritten(kit, body + b"\0"),
            rewritten(kit, batch=2),
        ):
            with pytest.raises(MaterialError, match="another layout"):
                party.source(bad)
        party.prepare(party.source(kit))
