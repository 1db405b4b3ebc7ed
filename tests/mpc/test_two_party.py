"""Kits made by the two servers themselves: every verb's relation, answers, wrong partners, nothing reused."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from autorep import _native
from autorep._native import ot
from autorep.errors import AutorepError, ConfigError, HandshakeError, MaterialError, ProtocolError
from autorep.mpc import verbs
from autorep.mpc.kit import verify
from autorep.mpc.local import LocalPair, join_output, share_input
from autorep.mpc.party import Party
from autorep.mpc.ring import reduce
from autorep.mpc.rlwe import linear, slots
from autorep.mpc.rlwe.packing import pack
from autorep.mpc.rlwe.parameters import SecretKey
from autorep.mpc.transport import Ledger, MemoryTransport, memory_pair
from autorep.mpc.two_party import model, names, rounding, wire
from autorep.mpc.two_party.account import Spent
from autorep.mpc.two_party.cost import make_frames, preparation_cost, setup_frames
from autorep.mpc.two_party.cross import Coefficients, LatticeCross
from autorep.mpc.two_party.model import Maker, TwoPartyModel
from autorep.mpc.two_party.stored import OwnRandomness, kit_bytes
from autorep.program import ir, quadratics
from autorep.program.files import share_parameters
from autorep.program.fixed import run_fixed
from tests.chance import uneven
from tests.mpc.programs import Builder, mixed_program
from tests.mpc.relations import check_relations, recorded

VERBS = {
    verbs.Mask, verbs.Truncation, verbs.Product, verbs.LinearImage, verbs.Quadratic, verbs.Bits, verbs.BitTriples,
    verbs.Selection,
}  # fmt: skip


class Servers:
    """Two parties with a preparation link and an online link."""

    def __init__(self, program: ir.Program, preparation: str = "two-party", timeout: float = 60.0) -> None:
        self.program, shares = program, share_parameters(program)
        self.offline, self.online = memory_pair(timeout), memory_pair(timeout)
        self.models = [TwoPartyModel(program, i, preparation) for i in (0, 1)]
        self.parties = [Party(program, shares[i], i, "bits") for i in (0, 1)]
        for party, prepared in zip(self.parties, self.models):
            party.setup(prepared)

    def both(self, work: Callable[[int], Any]) -> tuple[Any, Any]:
        def guarded(i: int) -> Any:
            try:
                return work(i)
            except Exception as error:
                for link in (self.offline[i], self.online[i]):
                    link.abort(type(error).__name__)
                raise

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(guarded, i) for i in (0, 1)]
            errors = [error for future in futures if (error := future.exception())]
            if errors:
                raise next((e for e in errors if "peer stopped" not in str(e)), errors[0])
            return futures[0].result(), futures[1].result()

    def make(self, count: int = 1, batch: int = 1) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
        return self.both(lambda i: Maker(self.models[i], self.offline[i]).make(count, batch))

    def answer(self, kits: list[bytes], x: np.ndarray) -> np.ndarray:
        inputs = share_input(self.program, x)

        def one(i: int) -> np.ndarray:
            party = self.parties[i]
            return party.run(self.online[i], party.prepare(party.source(kits[i])), inputs[i])

        return join_output(self.program, *self.both(one))


def small_program(seed: int = 0) -> ir.Program:
    """Stem, a mixed activation, a strided convolution, a head: few enough values for transfers alone."""
    b = Builder(seed, shape=(2, 4, 4))
    b.stem(2)
    b.conv(2, stride=2)
    b.activation(0.5)
    b.head(2)
    return b.program()


@pytest.mark.parametrize("preparation", ["two-party", "ot"])
def test_every_relation_holds_and_the_answer_is_fixed_points(preparation: str) -> None:
    program = mixed_program(6) if preparation == "two-party" else small_program()
    servers, batch = Servers(program, preparation), 2
    made = servers.make(2, batch)
    assert [kit_id for kit_id, _ in made[0]] == [kit_id for kit_id, _ in made[1]]
    assert {len(kit) for kits in made for _, kit in kits} == {kit_bytes(program, batch)}
    for kits in made:
        for kit_id, kit in kits:
            assert verify(kit).kit_id == kit_id
    sources = [servers.parties[i].source(made[i][0][1]) for i in (0, 1)]
    draws = recorded(program, sources[0]), recorded(program, sources[1])
    assert check_relations(program, sources[0], draws) == VERBS - (
        set() if preparation == "two-party" else {verbs.Product}
    )
    x = np.random.default_rng(0).normal(0, 1, (batch, *program.input.shape))
    answer = servers.answer([made[i][1][1] for i in (0, 1)], x)
    assert np.abs(answer - run_fixed(program, x)).max() < 5e-3


@pytest.mark.parametrize(("images", "count"), [(3, 2 * slots.SLOTS + 5), (1, 7)])
def test_quadratics_are_exact_whoever_holds_the_key_of_a_block(
    images: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine blocks: five of P0's key and four of P1's, in chunks that cross images; and one block, all of it P0's."""
    monkeypatch.setattr(slots, "CHUNK", 2)
    links, rng, t = memory_pair(), np.random.default_rng(0), slots.MODULUS.value
    a, b = rng.integers(-(2**20), 2**20, (2, count))
    rho = rng.integers(-(2**18), 2**18, (images, count))
    first = rng.integers(0, 2**64, (2, count), dtype=np.uint64), rng.integers(0, t, rho.shape, dtype=np.uint64)
    second = (
        np.stack([a, b]).view(np.uint64) - first[0],
        ((rho.astype(object) - first[1].astype(object)) % t).astype(np.uint64),
    )

    def run(i: int) -> tuple[np.ndarray, np.ndarray]:
        (coefficients, shares), cross = (first, second)[i], LatticeCross(i, links[i])
        cross.load({}, Coefficients(*coefficients))
        return cross.quadratics(shares)

    with ThreadPoolExecutor(2) as pool:
        (p0, q0), (p1, q1) = pool.map(run, (0, 1))
    assert np.array_equal((p0 + p1).view(np.int64), a * rho)
    assert np.array_equal((q0 + q1).view(np.int64), rho * (a * rho - b))
    held = [part.stop - part.start for part in slots.halves(images * slots.blocks_of(count))]
    assert held == ([5, 4] if images == 3 else [1, 0])


def test_random_networks_agree_with_fixed_point() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        b = Builder(seed, shape=(3, 8, 8))
        b.stem(4)
        for _ in range(2):
            start = b.last
            b.conv(4, groups=int(rng.choice([1, 4])))
            b.residual(start)
            b.activation(float(rng.choice([0.0, 0.3, 1.0])))
        b.max_pool(2, 2, 0)
        b.head(3)
        program = b.program()
        servers = Servers(program)
        kits0, kits1 = servers.make()
        x = rng.normal(0, 1, (1, *program.input.shape))
        assert np.abs(servers.answer([kits0[0][1], kits1[0][1]], x) - run_fixed(program, x)).max() < 5e-3


def test_two_kits_share_nothing() -> None:
    servers = Servers(small_program())
    kits0, _ = servers.make(2)
    draws = [recorded(servers.program, servers.parties[0].source(kit)) for _, kit in kits0]
    for (c, _, first), (_, _, second) in zip(*draws):
        if isinstance(c, verbs.Mask | verbs.LinearImage):
            assert not (first == second).any()


def test_a_maker_goes_on_where_it_stopped() -> None:
    """Two calls of one maker give different kits, and the transfers' numbers run on."""
    servers = Servers(small_program())

    def one(i: int) -> list[tuple[bytes, bytes]]:
        maker = Maker(servers.models[i], servers.offline[i])
        return maker.make() + maker.make()

    kits0, kits1 = servers.both(one)
    assert kits0[0][0] != kits0[1][0]
    x = np.zeros((1, *servers.program.input.shape))
    expected = run_fixed(servers.program, x)
    for number in (0, 1):
        answer = servers.answer([kits0[number][1], kits1[number][1]], x)
        assert np.abs(answer - expected).max() < 5e-3


def test_wrong_partners_stop_both_with_a_cause() -> None:
    servers, other = Servers(small_program(0)), Servers(small_program(1))
    models = servers.models[0], other.models[1]
    with pytest.raises(HandshakeError, match="program is"):
        servers.both(lambda i: Maker(models[i], servers.offline[i]))
    servers = Servers(small_program())
    models = servers.models[0], TwoPartyModel(servers.program, 1, "ot")
    with pytest.raises(HandshakeError, match="preparation is"):
        servers.both(lambda i: Maker(models[i], servers.offline[i]))
    servers = Servers(small_program())
    with pytest.raises(ProtocolError, match="prepare/kits"):
        servers.both(lambda i: Maker(servers.models[i], servers.offline[i]).make(1 + i))
    assert all(link.failed for link in servers.offline)


def test_makers_of_another_release_part_at_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(small_program())
    told = iter([wire.fingerprints(), {**wire.fingerprints(), "messages": "00000000"}])
    monkeypatch.setattr(model, "fingerprints", lambda: next(told))
    with pytest.raises(HandshakeError, match="wire is"):
        servers.both(lambda i: Maker(servers.models[i], servers.offline[i]))
    assert all(link.failed for link in servers.offline)


@pytest.mark.parametrize("part", ["polynomials", "transfers", "messages"])
def test_what_changes_a_message_changes_its_fingerprint(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    before = wire.fingerprints()
    if part == "polynomials":
        monkeypatch.setattr(wire, "expand", lambda ring, *_: ring.uniform(bytes(16), 1))
    elif part == "transfers":
        extend = wire.kernel.Receiver.extend
        monkeypatch.setattr(wire.kernel.Receiver, "extend", lambda self, first, bits: extend(self, first + 128, bits))
    else:
        sources = wire._sources()
        monkeypatch.setattr(wire, "_sources", lambda: [*sources[:-1], sources[-1] + b"#"])
    after = wire.fingerprints.__wrapped__()
    assert {name for name in before if before[name] != after[name]} == {part}


def test_fingerprints_are_the_same_at_every_level() -> None:
    found = []
    for level in ("portable", "avx2", "avx512"):
        with contextlib.suppress(ValueError):  # a level this processor does not have
            _native.set_simd(level)
            found.append(wire.fingerprints.__wrapped__())
    _native.set_simd("auto")
    assert all(each == found[0] for each in found)


def test_kits_of_other_shares_or_a_dealer_are_refused() -> None:
    program = small_program()
    servers, other = Servers(program), Servers(program)
    kits0, _ = servers.make()
    with pytest.raises(MaterialError, match="other parameter shares"):
        other.parties[0].source(kits0[0][1])
    source = servers.parties[0].source(kits0[0][1])
    source.draw(verbs.Mask("input/mask", program.input.size, 64))
    with pytest.raises(MaterialError, match="used already"):
        source.draw(verbs.Mask("input/mask", program.input.size, 64))


class Tampering(MemoryTransport):
    """Changes one frame that this end sends: cut, repeated, later than the next one, too short or too long."""

    how, when, seen, held = "", 0, 0, b""

    def _transfer(self, header, payload, reader) -> None:
        if payload is None:
            return super()._transfer(header, payload, reader)
        self.seen += 1
        frame = header + bytes(payload)
        if self.seen != self.when:
            self._outgoing.put(frame)
            if self.held:
                self._outgoing.put(self.held)
                self.held = b""
        elif self.how == "reordered":
            self.held = frame
        else:
            for each in self._tampered(header, bytes(payload)):
                self._outgoing.put(each)
        return super()._transfer(b"", None, reader) if reader is not None else None

    def _tampered(self, header: bytes, payload: bytes) -> list[bytes]:
        if self.how == "cut":
            return [(header + payload)[: len(payload) // 2]]
        if self.how == "repeated":
            return 2 * [header + payload]
        payload = payload[:-1] if self.how == "short" else payload + b"x"
        return [header[:-8] + len(payload).to_bytes(8, "little") + payload]


@pytest.mark.parametrize("how", ["cut", "repeated", "reordered", "short", "long"])
@pytest.mark.parametrize("when", [2, 9])
@pytest.mark.parametrize("party", [0, 1])
def test_a_tampered_message_aborts_both_with_a_cause(how: str, when: int, party: int) -> None:
    timeout = 2.0 if how == "reordered" else 120.0  # what waits for the frame behind it waits for ever
    servers = Servers(small_program(), timeout=timeout)
    links = list(servers.offline)
    links[party] = Tampering(links[party]._outgoing, links[party]._incoming, timeout)
    links[party].how, links[party].when = how, when
    servers.offline = (links[0], links[1])

    def failure(i: int) -> Exception:
        try:
            Maker(servers.models[i], links[i]).make()
        except AutorepError as error:
            links[i].abort(str(error))
            return error
        raise AssertionError(f"party {i} did not notice")

    failures = servers.both(failure)
    causes = {
        "cut": "closed in the middle of a frame", "repeated": "replayed, lost or reordered",
        "reordered": "replayed, lost or reordered|nothing moved", "short": "bytes, expected", "long": "bytes, expected",
    }  # fmt: skip
    for error in failures:
        assert re.search(causes[how], str(error)), error
    assert all(link.failed for link in links)


@pytest.mark.parametrize("fill", [0, 2**64 - 1])
def test_what_makers_send_is_uniform_whatever_their_masks_and_choices_are(
    monkeypatch: pytest.MonkeyPatch, fill: int
) -> None:
    """χ² of the bytes of every kind of message, all masks, triples' bits and selecting bits being zero, or all one."""
    servers, sent = Servers(mixed_program(6)), [dict[str, bytes](), dict[str, bytes]()]
    constant = np.uint64(fill)
    monkeypatch.setattr(OwnRandomness, "words", lambda _, name, n, bits=64: reduce(np.full(n, constant), bits))

    def spied(i: int) -> Any:
        step = servers.offline[i]._step

        def spy(kind: int, label: str, payload: Any, reader: Any) -> Any:
            name = label if "/values" not in label and "/choose" not in label else label.rpartition("/")[2]
            if payload is not None:
                sent[i][name] = sent[i].get(name, b"") + bytes(payload)
            return step(kind, label, payload, reader)

        servers.offline[i]._step = spy  # type: ignore[method-assign]
        return Maker(servers.models[i], servers.offline[i]).make(2)

    servers.both(spied)
    checked = set()
    for messages in sent:
        for name, data in messages.items():
            if name in ("hello", "prepare/kits") or len(data) < 4096:
                continue
            checked.add(name)
            assert not uneven(np.frombuffer(data, np.uint8)), name
    assert {"linear/request", "choose", "values", "quadratic/rho", "quadratic/p", "quadratic/difference"} <= checked
    assert any(name.endswith("/answer") for name in checked)


def test_no_two_ciphertexts_share_their_public_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """c₁ comes from a seed and a label; where two requests had the same, their difference would be in the clear."""
    servers, used = Servers(mixed_program(6)), []
    encrypt = SecretKey.encrypt
    monkeypatch.setattr(
        SecretKey, "encrypt", lambda key, m, seed, label: (used.append((seed, label)), encrypt(key, m, seed, label))[1]
    )

    def twice(i: int) -> None:
        maker = Maker(servers.models[i], servers.offline[i])
        maker.make(2)
        maker.make(1)

    servers.both(twice)
    assert len(used) == len(set(used)) > 10


def test_dcf_comparisons_are_refused() -> None:
    program = small_program()
    servers = Servers(program)
    kits0, _ = servers.make()
    dcf = Party(program, share_parameters(program)[0], 0, "dcf")
    with pytest.raises(MaterialError, match="comparison protocol"):
        dcf.prepare(servers.parties[0].source(kits0[0][1]))


@pytest.mark.parametrize("preparation", ["two-party", "ot"])
def test_a_local_pair_prepares_without_a_dealer(preparation: str) -> None:
    program = small_program()
    x = np.random.default_rng(1).normal(0, 1, (2, *program.input.shape))
    with LocalPair(program, preparation=preparation) as pair:
        answer = pair.run(x)
        assert pair.ledger.total("offline").sent == 0
        assert pair.preparing_ledger.total("offline").sent > 0
        assert pair.preparing_ledger.total("online").sent == 0
    assert np.abs(answer - run_fixed(program, x)).max() < 5e-3


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    program = small_program()
    for keyed in ("dcf", "short"):
        with pytest.raises(ConfigError, match="keys are made by a dealer"):
            LocalPair(program, keyed, preparation="two-party")
    name = next(name for name in program.parameters if name.endswith(".a"))
    steep = dataclasses.replace(program, parameters={**program.parameters, name: np.full(2, 40.0)})
    with pytest.raises(ConfigError, match="quadratic's coefficients"):
        LocalPair(steep, preparation="two-party")


@pytest.mark.parametrize("preparation", ["two-party", "ot"])
def test_ledger_equals_the_cost_model_frame_by_frame(preparation: str) -> None:
    program = mixed_program(5) if preparation == "two-party" else small_program()
    servers, count, batch = Servers(program, preparation), 2, 1

    def one(i: int) -> tuple[Ledger, Ledger]:
        link = servers.offline[i]
        maker = Maker(servers.models[i], link)
        setup, link.ledger = link.ledger, Ledger()
        maker.make(count, batch)
        return setup, link.ledger

    ledgers = servers.both(one)
    planned = setup_frames(program, preparation), make_frames(program, count, batch, preparation)
    for number, frames in enumerate(planned):
        expected: dict[str, list[int]] = {}
        for frame in frames:
            entry = expected.setdefault(frame.label, [0, 0])
            entry[0] += frame.bytes(0)
            entry[1] += frame.bytes(1)
        for party in (0, 1):
            found = {k: [e.sent, e.received] for k, e in ledgers[party][number].layers("offline").items()}
            assert found == {label: [both[party], both[1 - party]] for label, both in expected.items()}
    cost = preparation_cost(program, count, batch, preparation)
    for party in (0, 1):
        assert ledgers[party][1].total("offline").sent == count * cost.sent[party]
        assert ledgers[party][0].total("offline").sent == cost.setup_bytes[party]


def test_parts_of_making_add_up_to_all_of_it() -> None:
    servers, count = Servers(mixed_program(5)), 2

    def one(i: int) -> tuple[Maker, Spent, int]:
        maker, link = Maker(servers.models[i], servers.offline[i]), servers.offline[i]
        maker.make()  # what an earlier call took is forgotten
        link.ledger, now, moments = Ledger(), maker.account._now, []
        maker.account._now = lambda: moments.append(now()) or moments[-1]  # type: ignore[method-assign, func-returns-value]
        maker.make(count)
        return maker, moments[-1] - moments[0], link.ledger.total("offline").sent

    for maker, whole, sent in servers.both(one):
        parts = maker.account.parts
        assert set(parts) == {
            "masks and kits", "linear layers", "own convolutions", "products", "comparisons", "quadratics",
        }  # fmt: skip
        assert sum(part.sent for part in parts.values()) == sent
        assert sum(part.seconds for part in parts.values()) == pytest.approx(whole.seconds)
        assert sum(part.cpu_seconds for part in parts.values()) == pytest.approx(whole.cpu_seconds)
        assert all(part.seconds > 0 for part in parts.values())
        assert parts["own convolutions"].sent == 0
        frames = list(make_frames(servers.program, count))
        for part, prefix in (("quadratics", "quadratic"), ("products", "product")):
            mine = sum(frame.bytes(maker.model.party) for frame in frames if frame.label.startswith(prefix))
            assert parts[part].sent == mine > 0


@pytest.mark.parametrize("preparation", ["two-party", "ot"])
def test_the_estimate_counts_what_the_makers_do(preparation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transfer, ciphertext, transformed weight and product of a run is one that was counted."""
    program, count = (mixed_program(5) if preparation == "two-party" else small_program()), 2
    servers, done, one_at_a_time = Servers(program, preparation), Counter[str](), threading.Lock()
    extend, answer = ot.Receiver.extend, linear.WeightOwner.answer
    weights, encrypt = linear.WeightOwner._weights, slots.KeyHolder.encrypt

    def counted(name: str, call: Any, size: Callable[..., int]) -> Any:
        def spy(*arguments: Any) -> Any:
            with one_at_a_time:
                done[name] += size(*arguments)
            return call(*arguments)

        return spy

    makers = servers.both(lambda i: Maker(servers.models[i], servers.offline[i]))
    monkeypatch.setattr(ot.Receiver, "extend", counted("transfers", extend, lambda *a: 64 * a[2].size))
    monkeypatch.setattr(
        linear.WeightOwner, "answer", counted("answers", answer, lambda owner, *a: a[2] * owner._packing.answers)
    )
    monkeypatch.setattr(
        linear.WeightOwner, "_weights", counted("weights", weights, lambda owner, _, n: n * owner._packing.digits)
    )
    monkeypatch.setattr(slots.KeyHolder, "encrypt", counted("blocks", encrypt, lambda *a: len(a[1])))
    servers.both(lambda i: makers[i].make(count))
    work = preparation_cost(program, count, 1, preparation).work
    assert done["transfers"] == work.transfers > 0  # each has one receiver
    assert done["weights"] == 2 * work.weights  # of both parties
    packings = [pack(layer) for layer in model.linear_layers(program)] if preparation == "two-party" else []
    assert done["answers"] + 2 * count * sum(p.requests for p in packings) == 2 * work.ciphertexts
    assert work.products == 2 * count * work.weights
    assert done["blocks"] == 2 * work.blocks  # ρ, then P − b
    assert (work.weights > 0) == (preparation == "two-party")


def test_the_estimate_of_seconds_follows_the_link() -> None:
    made = preparation_cost(mixed_program(5), count=4)
    assert made.seconds(1e9, 0.0)["network_seconds"] == pytest.approx(made.longer_way / 4e9)
    slow = made.seconds(1e9, 0.02)
    assert slow["network_seconds"] == pytest.approx((made.flights * 0.02 + made.longer_way / 1e9) / 4)
    assert slow["seconds"] == pytest.approx(slow["network_seconds"] + slow["compute_seconds"])
    assert max(made.sent) <= made.longer_way / 4 <= sum(made.sent)
    alone = preparation_cost(mixed_program(5), count=1)
    assert alone.seconds(1e9, 0.0)["compute_seconds"] > made.seconds(1e9, 0.0)["compute_seconds"]  # weights are shared


def test_the_bound_of_quadratics_is_that_of_the_slots_and_of_the_guard_band() -> None:
    assert slots.MODULUS.value / 4 > quadratics.LARGEST_PRODUCT
    assert quadratics.MASK == 1 + 2.0**-rounding.GUARD


def test_servers_prepare_only_what_the_owner_says_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    program = mixed_program(0)
    assert any(isinstance(op, ir.Activation) and op.quad_count for op in program.ops)
    with pytest.raises(ConfigError, match="does not say"):
        names.check_owners_word(program.public(), "two-party")
    names.check_owners_word(program.public(), "ot")
    names.check_owners_word(names.with_owners_word(program).public(), "two-party")
    monkeypatch.setattr(names, "LARGEST_PRODUCT", 2.0**40)
    with pytest.raises(ConfigError, match="coefficients reach"):
        names.check_owners_word(names.with_owners_word(program).public(), "two-party")
