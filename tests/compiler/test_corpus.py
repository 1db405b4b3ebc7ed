"""The corpus: every style is right in all three modes, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import check, compile_program
from autorep.errors import AutorepError, TraceError
from autorep.modes import Program
from autorep.mpc.local import LocalPair
from autorep.program.answer import split_outputs
from autorep.program.fixed import FixedProgram
from autorep.program.rounding import rounding_bound
from autorep.replacement import replace_activations_
from tests.compiler import corpus_moved  # noqa: F401  # fills CASES
from tests.compiler.corpus import CASES, Styles
from tests.compiler.corpus_refused import REFUSED
from tests.mpc.programs import DealtRounding, run_known
from tests.program.networks import images, settle_

SHAPE = (3, 10, 10)
SEEDS = (b"\x03" * 32, b"\x04" * 32)


def assert_right(program: Program, model: nn.Module, x: torch.Tensor, fixed_tolerance: float = 0.01) -> None:
    """float = torch, fixed within its bound, secure = fixed in every bit."""
    with torch.no_grad():
        expected = model(x.clone()).double().numpy()
    largest = max(float(np.abs(expected).max()), 1e-3)
    assert np.abs(program.run(x.numpy()) - expected).max() < 1e-5 * largest
    off = np.abs(program.run(x.numpy(), "fixed") - program.run(x.numpy()))
    assert (off <= rounding_bound(program, x.numpy())).all()
    assert off.max() < fixed_tolerance * max(largest, 0.3)
    with LocalPair(program) as pair:
        secure = run_known(pair, x[:1].numpy(), SEEDS)
    np.testing.assert_array_equal(
        secure, FixedProgram(program).run(x[:1].numpy(), DealtRounding(pair.dealer, SEEDS, 1))
    )


def model_of(forward) -> Styles:
    model = Styles(forward)
    settle_(model, images(16, shape=SHAPE))
    return model


def test_the_corpus_is_large_enough():
    assert len(CASES) + len(REFUSED) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_style_is_right(name):
    model, x = model_of(CASES[name]), images(8, shape=SHAPE)
    assert_right(compile_program(model, x), model, x)


@pytest.mark.parametrize("name", REFUSED)
def test_a_style_is_refused_by_name(name):
    match, forward = REFUSED[name]
    with pytest.raises(AutorepError, match=match):
        compile_program(Styles(forward).eval(), images(4, shape=SHAPE))


REPLACEABLE = [
    "inplace_relu_before_a_skip",
    "relu_method_in_place",
    "add_in_place_with_alpha",
    "in_place_on_a_slice",
    "clamp_in_place",
    "xception_style_relu_first_in_block",
    "reused_convolution",
    "dropout_by_flag",
    "split_and_concatenate",
    "copy_into",
    "in_place_through_a_view",
]


@pytest.mark.parametrize("name", REPLACEABLE)
def test_after_replacement_a_style_is_right_or_refused(name):
    """Masks of both kinds; what replacement cannot follow it says, and leaves the model alone."""
    model, x = model_of(CASES[name]), images(8, shape=SHAPE)
    with torch.no_grad():
        before = model(x.clone())
    try:
        replacement = replace_activations_(model, torch.zeros(1, *SHAPE))
    except TraceError:
        with torch.no_grad():
            torch.testing.assert_close(model(x.clone()), before)
        return
    with torch.no_grad():
        torch.testing.assert_close(model(x.clone()), before)
    replacement.calibrate_(model, [x])
    for number, site in enumerate(replacement.sites.values()):
        site.mask.view(-1)[number % 2 :: 3] = 0
    assert_right(compile_program(model, x), model, x, fixed_tolerance=0.02)


def test_hooks_that_change_values_are_followed():
    model, x = model_of(CASES["reused_batch_norm"]), images(8, shape=SHAPE)
    model.a.register_forward_hook(lambda module, args, output: output * 2)
    model.norm.register_forward_pre_hook(lambda module, args: (args[0] + 0.5,))
    assert_right(compile_program(model, x), model, x)


class Heads(nn.Module):
    """Several answers, in the containers people return them in."""

    def __init__(self, container: str) -> None:
        super().__init__()
        self.stem, self.fc, self.other = nn.Conv2d(3, 4, 3), nn.Linear(4, 5), nn.Linear(4, 2)
        self.container = container

    def forward(self, x):
        x = torch.relu(self.stem(x))
        logits, side, maps = self.fc(x.mean((2, 3))), 30 * self.other(x.mean((2, 3))), x[:, :1, ::4, ::4]
        if self.container == "tuple":
            return logits, None, side, maps
        if self.container == "nested":
            return [logits, (side, maps)]
        return {"logits": logits, "side": side, "maps": maps}


@pytest.mark.parametrize(
    ("container", "names"),
    [("tuple", ["0", "2", "3"]), ("nested", ["0", "1.0", "1.1"]), ("dict", ["logits", "side", "maps"])],
)
def test_several_answers_come_in_one_row_with_their_names(container, names):
    torch.manual_seed(0)
    model, x = Heads(container).eval(), images(6, shape=SHAPE)
    program = compile_program(model, x)
    with torch.no_grad():
        expected = [
            value.reshape(6, -1).numpy() for value in torch.utils._pytree.tree_leaves(model(x)) if value is not None
        ]
    for mode, tolerance in (("float", 1e-5), ("fixed", 0.01), ("secure", 0.01)):
        found = split_outputs(program.info, program.run(x.numpy(), mode))
        assert list(found) == names
        for ours, theirs in zip(found.values(), expected):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, y):
        return self.fc(x + y)


def test_what_is_no_image_classifier_is_refused():
    x = torch.randn(4, 4)
    with pytest.raises(TraceError, match="one batch of images"):
        compile_program(Twice(), x)
    with pytest.raises(TraceError, match="scripted"):
        check(torch.jit.trace(nn.Linear(4, 2), x), x)


def test_wrappers_and_other_precisions_are_seen_through():
    x = torch.randn(8, 4)
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    expected = layer(x).detach().numpy()
    for model in (nn.DataParallel(layer), torch.compile(layer), layer.double()):
        np.testing.assert_allclose(compile_program(model, x).run(x.numpy()), expected, atol=1e-5)
    half = compile_program(layer.to(torch.bfloat16), x)
    np.testing.assert_allclose(half.run(x.numpy()), expected, atol=0.02)


@pytest.mark.parametrize(
    ("batches", "match"),
    [
        ([{"pixel_values": torch.zeros(1, 4)}], "dictionary"),
        ([torch.zeros(2, 4), torch.zeros(2, 5)], "one shape"),
        ([torch.full((2, 4), torch.nan)], "not finite"),
        (["cat.jpg"], "tensor"),
    ],
)
def test_calibration_batches_of_another_kind_are_refused(batches, match):
    with pytest.raises(AutorepError, match=match):
        compile_program(nn.Linear(4, 2), batches)
