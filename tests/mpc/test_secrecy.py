"""Secrecy, bit by bit: everything a party sees is uniform in its ring and nothing is used for two things.

Each check here catches some of the mutations in `tests/mutants/table.py`, which leave every answer right.
"""

from __future__ import annotations

import re
import secrets

import numpy as np
import pytest

from autorep.errors import MaterialError
from autorep.mpc import blinding, prg
from autorep.mpc.dealer import Dealer
from autorep.mpc.inventory import program_items
from autorep.mpc.kit import read_header
from autorep.mpc.local import LocalPair, share_input
from autorep.mpc.operations import protocols
from autorep.mpc.tape import PartyTape, kit_sections
from autorep.mpc.verbs import Mask
from autorep.program.files import share_parameters
from autorep.service import shares as client_shares
from tests.mpc.programs import class_program, mixed_program, prepare
from tests.mpc.views import COMMON, View, repeated, unbalanced, view_of

ENOUGH = 64  # values from which on a constant bit stands out


@pytest.fixture(scope="module", params=["dcf", "short", "bits", "class dcf", "class short", "class bits"])
def view(request) -> View:
    """Of every operation, and of an answer that is the class alone."""
    *answer, comparison = request.param.split()
    return view_of(class_program(7), 64, comparison) if answer else view_of(mixed_program(7), 16, comparison)


@pytest.mark.parametrize("origin", ["mask", "share", "xor", "keys", "sent", "opened"])
def test_every_bit_of_what_a_party_sees_is_balanced(view, origin):
    tensors = [seen for seen in view.seen if seen.origin == origin and seen.values.size >= ENOUGH]
    assert tensors or origin in ("xor", "keys")  # each of them belongs to one of the comparisons
    for seen in tensors:
        assert not unbalanced(seen.values, seen.bits), seen


def test_no_two_tensors_of_a_view_have_values_in_common(view):
    """But for planes of the classes' own bits, which are public where a tournament begins: zeros, shared."""
    seen = [s for s in view.seen if s.bits >= COMMON and not re.search(r"layer0/(bits|and)", s.label)]
    tensors = {f"{s.party} {s.origin} {s.label} {i}": s.values for i, s in enumerate(seen)}
    assert len(tensors) > 10
    assert not repeated(tensors)


def test_every_effective_mask_is_uniform_in_its_ring(view):
    assert len(view.masks) > 6
    for name, (mask, bits) in view.masks.items():
        assert not unbalanced(mask, bits), name


@pytest.mark.parametrize("program", [mixed_program(7), class_program(7)], ids=["every operation", "class"])
def test_every_opening_is_masked_in_exactly_its_ring(program):
    """As declared: as many masks as values are opened, of the same bits, operation by operation."""
    for operation in protocols(program, 3, "dcf"):  # the other comparisons have openings of bits besides
        opened = sorted((part.count, part.bits) for entry in operation.rounds() for part in entry.parts)
        masks = [c for c in operation.correlations() if isinstance(c, Mask)]
        assert sorted((mask.count, mask.bits) for mask in masks) == opened, operation.op.name


def test_no_two_effective_masks_have_values_in_common(view):
    assert not repeated({name: mask for name, (mask, bits) in view.masks.items() if bits >= COMMON})


def test_all_that_a_kit_holds_is_used(view):
    assert not view.unread


def test_answers_are_shares_in_their_ring_and_nothing_more(view):
    bits = view.answer_bits
    for share in view.answers:
        assert share.size >= ENOUGH
        assert int(share.max()) < 1 << bits
        assert not unbalanced(share.reshape(-1), bits)


def test_a_tensor_of_a_kit_is_read_once():
    program = mixed_program(7)
    kit = Dealer(program).deal().kits[0]
    items = program_items(program, 1)
    tape = PartyTape(read_header(kit), kit_sections(items, 0), kit)
    mask = next(item for item in items if item.kind == "mask")
    tape.mask(mask)
    with pytest.raises(MaterialError, match="used already"):
        tape.mask(mask)


def test_a_prepared_query_runs_once():
    program = mixed_program(7)
    with LocalPair(program) as pair:
        kits, inputs = pair.kits(1), share_input(program, np.zeros((1, *program.input.shape)))
        queries = [prepare(party, kit) for party, kit in zip(pair.parties, kits)]

        def both() -> None:
            pair._both(lambda i: pair.parties[i].run(pair._links[i], queries[i], inputs[i]))

        both()
        with pytest.raises(MaterialError, match="used already"):
            both()


def test_kits_share_neither_seeds_nor_ids_nor_comparison_keys():
    dealer = Dealer(mixed_program(7))
    kits = [kit for _ in range(3) for kit in dealer.deal().kits]
    headers = [read_header(kit) for kit in kits]
    assert len({header.seed for header in headers}) == 6
    assert len({header.kit_id for header in headers}) == 3
    items = program_items(dealer.program, 1)
    tapes = [PartyTape(header, kit_sections(items, header.party), kit) for header, kit in zip(headers, kits)]
    assert len({tape.aes_keys() for tape in tapes}) == 3, "the same for both parties, another for every kit"
    assert all(len(set(np.frombuffer(tape.aes_keys(), np.uint8).tolist())) > 8 for tape in tapes)


def test_blindings_of_two_parameters_and_two_parties_have_nothing_in_common():
    fresh = blinding.Blinding()
    shapes = {"a.weight": (4096,), "b.weight": (4096,), "a.bias": (512,)}
    tensors = {
        f"{party} {label}": blinding.blinding_share(seed, label, shape)
        for party, seed in enumerate(fresh.seeds)
        for label, shape in shapes.items()
    }
    assert not repeated(tensors)
    for name, tensor in tensors.items():
        assert not unbalanced(tensor, 64), name
    assert set(blinding.Blinding().seeds).isdisjoint(fresh.seeds)


def test_a_stream_depends_on_every_byte_of_its_seed_and_label():
    seed, label = bytes(range(32)), "layer/r"
    keys = {prg.stream_key(seed, label)}
    for place in range(32):
        changed = bytearray(seed)
        changed[place] ^= 1
        keys.add(prg.stream_key(bytes(changed), label))
    for place in range(len(label)):
        keys.add(prg.stream_key(seed, label[:place] + "#" + label[place + 1 :]))
    keys.add(prg.stream_key(seed, label + "\x01"))
    assert len(keys) == 1 + 32 + len(label) + 1
    assert all(len(key) == 16 for key in keys)


def test_seeds_come_from_the_operating_system(monkeypatch):
    drawn: list[bytes] = []
    original = secrets.token_bytes

    def spy(count=None):
        drawn.append(original(count))
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_bytes", spy)
    headers = [read_header(kit) for kit in Dealer(mixed_program(7)).deal().kits]
    assert all(header.seed in drawn for header in headers)
    assert all(len(header.seed) == 32 for header in headers)


@pytest.mark.parametrize("split", ["library", "service"])
def test_both_halves_of_an_image_are_uniform_and_never_the_same(split):
    program = mixed_program(7)
    image = np.zeros((1, *program.input.shape))
    halves: dict[str, np.ndarray] = {}
    for attempt in range(8):
        if split == "library":
            pair = share_input(program, image)
        else:
            pair = tuple(np.frombuffer(body, "<u8") for body in client_shares.split(image[0], program.input.frac))
        assert not np.any(pair[0].reshape(-1) + pair[1].reshape(-1)), "they add up to the black image"
        for party, half in enumerate(pair):
            halves[f"{attempt} {party}"] = half.reshape(-1).astype(np.uint64)
    assert not repeated(halves)
    for party in "01":
        assert not unbalanced(np.concatenate([v for k, v in halves.items() if k.endswith(party)]), 64)


def test_both_shares_of_the_parameters_are_uniform_and_fresh():
    program = mixed_program(7)
    first, second = share_parameters(program), share_parameters(program)
    tensors = {}
    for party in (0, 1):
        for label, share in first[party].items():
            if share.size >= ENOUGH:
                assert not unbalanced(share.reshape(-1), 64), (party, label)
        tensors |= {f"{party} {label}": share.reshape(-1) for label, share in first[party].items()}
    tensors |= {f"again {label}": share.reshape(-1) for label, share in second[0].items()}
    assert not repeated(tensors)


def test_the_statistics_find_what_they_look_for():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 64, 1000, np.uint64)
    assert not unbalanced(values, 64)
    assert unbalanced(values & ~np.uint64(0xF000), 64) == [12, 13, 14, 15]
    other = rng.integers(0, 1 << 64, 1000, np.uint64)
    assert not repeated({"a": values, "b": other})
    other[17:57] = values[100:140]
    assert repeated({"a": values, "b": other}) == [("a", "b")]
    assert repeated({"a": np.resize(values[:10], 100)}) == [("a", "a")]
