"""What the servers see: uniform values, nothing shared between two runs, no secret in logs or errors."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest

from autorep import _native
from autorep.errors import AutorepError
from autorep.mpc import online
from autorep.mpc.dealer import Dealer
from autorep.mpc.kit import read_header
from autorep.mpc.local import LocalPair
from autorep.mpc.party import Party
from autorep.mpc.ring import reduce
from autorep.program.files import share_parameters
from tests.chance import coincidences, uneven
from tests.mpc.programs import mixed_program, prepare


@pytest.fixture
def messages(monkeypatch) -> list[tuple[int, str, np.ndarray, int]]:
    """Every share sent in an opening, as (party, label, reduced values, bits)."""
    seen: list[tuple[int, str, np.ndarray, int]] = []
    original = online.Exchange._swap

    def spy(self, label, parts, payload=None):
        received = original(self, label, parts, payload)
        for (share, bits), theirs in zip(parts, received):
            seen.append((self.party, f"sent {label}", reduce(share.copy(), bits), bits))
            if self.party == 0:  # the same value at both
                seen.append((0, f"opened {label}", _native.open_packed(share, theirs, bits), bits))
        return received

    monkeypatch.setattr(online.Exchange, "_swap", spy)
    return seen


def byte(values: np.ndarray, bits: int, shift: int) -> np.ndarray:
    """The byte at `shift` bits below the top."""
    return (values >> np.uint64(bits - shift)).astype(np.uint8)


@pytest.mark.parametrize("x_scale", [0.0, 1.0])
def test_messages_and_opened_values_are_uniform(messages, x_scale):
    program = mixed_program(7)
    x = x_scale * np.random.default_rng(0).normal(0, 1, (12, *program.input.shape))
    with LocalPair(program) as pair:
        messages.clear()  # the weights' openings are tested below
        pair.run(x)
        pair.run(x)
    for kind in ("sent", "opened"):
        for bits in {m[3] for m in messages}:
            values = np.concatenate([m[2].reshape(-1) for m in messages if m[1].startswith(kind) and m[3] == bits])
            assert values.size > 20_000
            for shift in (8, 16, bits):  # top byte, second byte, lowest byte
                assert not uneven(byte(values, bits, shift)), (kind, bits, shift)


def test_opened_weights_are_uniform_and_differ_between_dealers(messages):
    program = mixed_program(7)
    for _ in range(2):
        with LocalPair(program):
            pass
    opened = [m for m in messages if m[0] == 0 and m[1].startswith("opened")]
    half = len(opened) // 2
    values = np.concatenate([m[2].reshape(-1) for m in opened])
    assert not uneven(byte(values, 64, 8))
    assert all(not np.any(a[2] == b[2]) for a, b in zip(opened[:half], opened[half:]))


def test_two_runs_on_the_same_input_share_nothing(messages):
    program = mixed_program(8)
    x = np.random.default_rng(0).normal(0, 1, (1, *program.input.shape))
    with LocalPair(program) as pair:
        messages.clear()
        pair.run(x)
        first = list(messages)
        messages.clear()
        pair.run(x)
    second = list(messages)

    def ordered(run):
        return sorted(run, key=lambda message: message[0])  # by party; the order within one is fixed

    pairs = list(zip(ordered(first), ordered(second), strict=True))
    assert all(a[:2] == b[:2] for a, b in pairs)
    repeated = sum(np.count_nonzero(a[2] == b[2]) for a, b in pairs)
    values = sum(a[2].size for a, _ in pairs)
    assert repeated <= coincidences(values, min(a[3] for a, _ in pairs))


def test_no_seed_in_logs_reprs_or_errors(caplog):
    program = mixed_program(9)
    caplog.set_level(logging.DEBUG)
    dealer = Dealer(program)
    seeds = (b"\x5a" * 32, b"\x5b" * 32)
    sinks = io.BytesIO(), io.BytesIO()
    dealer.deal_to(sinks, 1, seeds)
    party = Party(program, share_parameters(program)[0], 0)
    with pytest.raises(AutorepError) as error:
        prepare(party, sinks[0].getvalue())
    shown = caplog.text + str(error.value) + repr(read_header(sinks[0].getvalue())) + repr(dealer.blinding)
    for seed in (*seeds, *dealer.blinding.seeds):
        assert seed.hex() not in shown
        assert repr(seed)[2:-1] not in shown
