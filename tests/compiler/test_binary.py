"""Binary networks: whole numbers without a change of any sign, trained on digits, the same in all three modes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from autorep import data, models
from autorep.cli.named import sketch
from autorep.compiler.binary import whole_numbers
from autorep.compiler.compile import compile_program
from autorep.compiler.draft import Draft
from autorep.errors import TraceError
from autorep.mpc.cost import cost
from autorep.mpc.local import LocalPair
from autorep.program.fixed import FixedProgram
from autorep.program.floating import run_ops
from autorep.program.ir import Conv, Input, Linear, Sign
from tests.mpc.programs import DealtRounding, run_known


def layers_of_signs(weight: np.ndarray, bias: np.ndarray) -> Draft:
    """sign(W·sign(x) + b) as a draft."""
    draft, (rows, columns) = Draft(), weight.shape
    common = {"bits": 0, "frac": 0}
    compared = {"open_bits": 0, "in_frac": 0, "kept_frac": 16, "window": 0}
    draft.add(Input(name="input", inputs=(), shape=(columns,), kind="wire", **common))
    draft.add(Sign(name="first", inputs=("input",), shape=(columns,), kind="wire", **common, **compared))
    line = Linear(name="line", inputs=("first",), shape=(rows,), kind="sum", **common, weight_frac=0)
    draft.add(line, weight=weight, bias=bias)
    draft.add(Sign(name="second", inputs=("line",), shape=(rows,), kind="wire", **common, **compared))
    return draft


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_sign_changes_and_binary_layers_become_whole(seed, columns, is_binary):
    rng = np.random.default_rng(seed)
    weight = rng.choice([-1.0, 1.0], (3, columns)) if is_binary else rng.normal(size=(3, columns))
    weight = weight * rng.uniform(0.01, 5, (3, 1))
    bias = rng.normal(size=3) * np.abs(weight).max(1) * 3
    draft, x = layers_of_signs(weight, bias), rng.normal(size=(16, columns))
    before = run_ops(list(draft.ops.values()), draft.parameters, x)
    whole_numbers(draft)
    np.testing.assert_array_equal(run_ops(list(draft.ops.values()), draft.parameters, x), before)
    after = draft.parameter("line", "weight"), draft.parameter("line", "bias")
    assert np.abs(after[0]).max() <= 1
    if is_binary:
        assert all(np.array_equal(values, np.rint(values)) for values in after)


def test_a_binary_network_learns_digits_and_answers_alike_in_every_mode():
    torch.manual_seed(0)
    dataset = data.load("digits")
    images = dataset.train.take(torch.arange(len(dataset.train))).float().div(255)
    labels = dataset.train.labels
    model = models.create("binary_digits")
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(60):
        batch = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:128]
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    test = dataset.test.take(torch.arange(len(dataset.test))).float().div(255)
    with torch.no_grad():
        right = float((model(test).argmax(1) == dataset.test.labels).float().mean())
    assert right > 0.85
    program = compile_program(model, [images[:128]])
    signs = [op for op in program.ops if isinstance(op, Sign)]
    assert sum(op.size for op in signs) == 2560
    assert all(op.open_bits <= 16 and op.in_frac == 0 for op in signs[1:])  # whole numbers, compared exactly
    x = test[:8].numpy()
    answers = model(test[:8]).detach().numpy()
    np.testing.assert_allclose(program.run(x, "float"), answers, rtol=1e-3, atol=1e-3 * np.abs(answers).max())
    seeds = b"\x01" * 32, b"\x02" * 32
    with LocalPair(program) as pair:
        private = run_known(pair, x, seeds)
        counted, ledger = cost(program, 8), pair.ledger.total("online")
    assert (counted.rounds, counted.online_bytes_per_party) == (ledger.rounds, ledger.sent)
    assert counted.comparisons == 8 * 2560
    np.testing.assert_array_equal(private, FixedProgram(program).run(x, DealtRounding(pair.dealer, seeds, len(x))))


def test_a_key_that_pays_out_one_bit_is_a_third_of_a_relus():
    binary, usual = sketch("binary_cifar"), sketch("resnet20", relus=188_416)
    assert sum(op.size for op in binary.ops if isinstance(op, Sign)) == 173_056
    per_sign = cost(binary).offline_bytes(0) / 173_056
    per_relu = cost(usual).offline_bytes(0) / 188_416
    assert per_sign < 0.5 * per_relu
    with pytest.raises(TraceError, match="no activation of kind relu"):
        sketch("binary_cifar", relus=10)
    assert any(isinstance(op, Conv) for op in binary.ops)
