"""Answers that say the class and whether it is in range: right, equal to fixed point bit for bit, and nothing more."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autorep.errors import ConfigError
from autorep.modes import Program
from autorep.mpc.inventory import program_rounds
from autorep.mpc.local import LocalPair, run_secure
from autorep.mpc.transport import FRAME_OVERHEAD
from autorep.program import ir
from autorep.program.answer import answering, feature_wire, read_answers
from autorep.program.files import load_public, program_hash, split
from autorep.program.fixed import FixedProgram, run_fixed
from tests.mpc.programs import Builder, DealtRounding, run_known

SEEDS = (b"\x03" * 32, b"\x04" * 32)


def network(classes: int, seed: int = 0, limit: float | None = 100.0) -> Program:
    b = Builder(seed, shape=(1, 4, 4))
    b.stem(4)
    b.conv(4)
    b.activation(0.5)
    b.head(classes)
    energy = {"feature_energy": 64 * 0.5}
    return dataclasses.replace(b.program(), info=energy if limit is None else {**energy, "output_limit": limit})


def inputs(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (count, 1, 4, 4))


def clear_inputs(program: Program, count: int) -> np.ndarray:
    """Images whose logits are so far apart that rounding cannot exchange any two."""
    x = inputs(20 * count)
    logits = np.sort(program.run(x, "float"), axis=1)
    found = x[np.diff(logits, axis=1).min(axis=1) > 0.02][:count]
    assert len(found) == count
    return found


@pytest.mark.parametrize("comparison", ["dcf", "short", "bits"])
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    gives=st.sampled_from(["class", "top-5", "logits"]),
    classes=st.integers(1, 19),
    scale=st.sampled_from([0, 0, 0, 3, 9, 30]),
    limit=st.sampled_from([None, 1.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_secure_equals_fixed_bit_for_bit_in_range_and_out_of_it(comparison, gives, classes, scale, limit, seed):
    program = answering(network(classes, seed, limit), gives, checked=True)
    x = 2.0**scale * inputs(2, seed)
    with LocalPair(program, comparison) as pair:
        answer = run_known(pair, x, SEEDS)
    np.testing.assert_array_equal(answer, FixedProgram(program).run(x, DealtRounding(pair.dealer, SEEDS, 2)))


@pytest.mark.parametrize("preparation", ["dealer", "two-party"])
@pytest.mark.parametrize("gives", ["class", "top-5"])
def test_the_classes_are_those_of_the_largest_logits(gives, preparation):
    plain = network(12)
    x = clear_inputs(plain, 4)
    found = read_answers(answering(plain, gives).info, run_secure(answering(plain, gives), x, preparation=preparation))
    assert found.logits is None
    expected = read_answers(plain.info, plain.run(x, "float"))
    np.testing.assert_array_equal(found.classes, expected.classes[:, : found.classes.shape[1]])
    assert found.classes.shape == (4, {"class": 1, "top-5": 5}[gives])
    assert found.in_range is not None
    assert found.in_range.all()


def test_of_equal_logits_the_first_wins():
    plain = network(9)
    head = plain.output.name
    parameters = {
        **plain.parameters,
        f"{head}.weight": np.zeros((9, 64)),
        f"{head}.bias": np.array([1.0] * 4 + [2.0] * 5),
    }
    program = answering(dataclasses.replace(plain, parameters=parameters), "top-5")
    for mode in ("float", "fixed", "secure"):
        np.testing.assert_array_equal(program.run(inputs(1), mode)[0], [4, 5, 6, 7, 8, 1])


@pytest.mark.parametrize("gives", ["class", "top-5"])
def test_a_client_gets_the_classes_and_one_bit_alone(gives):
    """Images of one class give one answer, the same bits whatever their logits; no bit of the answer is left over."""
    plain = network(6)
    program = answering(plain, gives)
    x = clear_inputs(plain, 24)
    logits = plain.run(x, "fixed")
    with LocalPair(program) as pair:
        answers = run_known(pair, x, SEEDS)
    assert program.output.bits == 4, "three for six classes, and a zero"
    expected = np.argsort(-logits, axis=1)[:, : answers.shape[1] - 1]
    np.testing.assert_array_equal(answers, np.concatenate([expected, np.ones((24, 1))], axis=1))


@pytest.mark.parametrize("mode", ["float", "fixed", "secure"])
def test_the_flag_falls_where_the_features_outgrow_the_bound(mode):
    program = answering(network(4), "logits", checked=True)
    (flag,) = (op for op in program.ops if isinstance(op, ir.WithinBound))
    features = feature_wire(network(4).ops)
    x = inputs(1) * np.geomspace(0.5, 16, 24).reshape(-1, 1, 1, 1)
    seen = {}
    run_fixed(program, x, observe=lambda op, value: seen.update({op.name: ir.decode(value, op.bits, op.frac)}))
    energy = np.square(seen[features.name]).sum(axis=1)
    bound = flag.bound * 4.0 ** (flag.shift - features.frac)
    assert bound == pytest.approx(16 * 32, rel=0.01)
    clear = np.abs(energy / bound - 1) > 0.02
    answer = read_answers(program.info, program.run(x, mode))
    assert answer.in_range is not None
    np.testing.assert_array_equal(answer.in_range[clear], (energy <= bound)[clear])
    assert 4 < answer.in_range.sum() < 20


@pytest.mark.parametrize("comparison", ["dcf", "short", "bits"])
@pytest.mark.parametrize("gives", ["class", "top-5", "logits"])
def test_ledger_equals_plan(comparison, gives):
    program = answering(network(10), gives, checked=True)
    with LocalPair(program, comparison) as pair:
        pair.run(inputs(3))
        total, layers = pair.ledger.total("online"), pair.ledger.layers("online")
    expected = program_rounds(program, 3, comparison)
    assert list(layers) == [entry.label for entry in expected]
    assert total.sent == total.received == sum(entry.bytes + FRAME_OVERHEAD for entry in expected)
    if comparison == "dcf":
        more = len(expected) - len(program_rounds(network(10), 3))
        assert more == {"class": 1 + 3 + 1, "top-5": 1 + 9 + 1, "logits": 1}[gives]


def test_the_answer_is_part_of_the_public_program(tmp_path):
    plain = network(4)
    programs = [plain, answering(plain, "class"), answering(plain, "logits", checked=True)]
    assert len({program_hash(program) for program in programs}) == 3
    assert answering(plain, "logits") is plain
    split(programs[1], tmp_path)
    assert program_hash(load_public(tmp_path / "public")) == program_hash(programs[1])


def test_what_cannot_be_answered_so_is_refused():
    plain = network(4)
    with pytest.raises(ConfigError, match="logits"):
        answering(plain, "best")
    with pytest.raises(ConfigError, match="already"):
        answering(answering(plain, "class"), "top-5")
    with pytest.raises(ConfigError, match="how large its features are"):
        answering(dataclasses.replace(plain, info={}), "class")
    with pytest.raises(ConfigError, match="too large"):
        answering(dataclasses.replace(plain, info={"feature_energy": 2.0**40}), "class")
    several = dataclasses.replace(plain, info={**plain.info, "outputs": {"age": 1, "kind": 3}})
    with pytest.raises(ConfigError, match="several outputs"):
        answering(several, "class")
    wire = dataclasses.replace(plain, ops=plain.ops[:-2])
    with pytest.raises(ConfigError, match="one row of logits"):
        answering(wire, "class")
