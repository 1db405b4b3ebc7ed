"""The guard: a program that is not the model's is refused by the first layer that differs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autorep.compiler import guard, translate
from autorep.compiler.compile import compile_program
from autorep.errors import RangeError, TraceError
from tests.program.networks import Network, images, mask_


def wrong_relu(to: translate.Translator, x):
    return to.activation(x, (0.0, 0.5), (1, -1))  # cut off at 0.5


def test_a_wrong_rule_is_refused_by_the_first_layer_that_differs(monkeypatch):
    monkeypatch.setitem(translate.RULES, "relu", wrong_relu)
    with pytest.raises(TraceError, match=r"first layer that differs is blocks\.0\.1 \(ReLU, .*networks\.py:\d+\)"):
        compile_program(Network(["conv", "residual"]), images(8))


def test_a_wrong_rule_beside_replaced_activations_is_found_too(monkeypatch):
    network = Network(["conv", "hard gate"])
    mask_(network, (0.5,))
    monkeypatch.setitem(translate.RULES, "hardsigmoid", wrong_relu)
    with pytest.raises(TraceError, match=r"first layer that differs is blocks\.1\.gate \(Hardsigmoid"):
        compile_program(network, images(8))


class Counting(nn.Module):
    """Another answer at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(4, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x) * self.calls


class ByBatch(nn.Module):
    """Another answer for another batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x) * len(x)


class NotAlone(nn.Module):
    """Fails on a batch of one, which torch.export, asked with two, does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        assert len(x) > 1, "no image alone"
        return self.fc(x)


def test_a_model_that_fails_by_itself_is_refused_with_its_own_words():
    with pytest.raises(TraceError, match="NotAlone itself fails on a batch of 1.*no image alone"):
        compile_program(NotAlone(), torch.randn(4, 4))


@pytest.mark.parametrize("cls", [Counting, ByBatch])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_forward_that_changes_from_call_to_call_is_refused(cls, count):
    """Also where calibration has just as many images as the model is exported with."""
    with pytest.raises(TraceError, match="from call to call, or for another batch size"):
        compile_program(cls(), torch.randn(count, 4))


class LargeBatches(nn.Module):
    """Does something else with more than two images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x) * (2 if len(x) > 2 else 1)


def test_another_answer_for_larger_batches_is_refused():
    with pytest.raises(TraceError, match="for another batch size"):
        compile_program(LargeBatches(), torch.randn(6, 4))


def test_fixed_point_beyond_its_rounding_is_refused(monkeypatch):
    """What rounding cannot explain is a mistake, however small beside the logits."""
    network, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(8, 4)
    program = compile_program(network, x)
    assert program.info["fixed_error"] <= program.info["fixed_bound"] < 1e-3
    run_fixed = guard.run_fixed
    monkeypatch.setattr(guard, "run_fixed", lambda *args: run_fixed(*args) + 2e-3)
    with pytest.raises(RangeError, match=r"off by 0.00\d+ where its rounding explains"):
        compile_program(network, x)


class Apart(nn.Module):
    """Two answers, of which one is a million times larger."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return 1e3 * self.other(x), 1e-3 * torch.relu(self.fc(x))


def test_a_small_answer_is_not_hidden_behind_a_large_one(monkeypatch):
    compile_program(Apart(), torch.randn(8, 4))
    monkeypatch.setitem(translate.RULES, "relu", wrong_relu)
    with pytest.raises(TraceError, match=r"first layer that differs is relu"):
        compile_program(Apart(), torch.randn(8, 4))


class Changing(nn.Module):
    """Changes the tensor that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x.mul_(0.5))


def test_calibration_images_stay_as_they_are():
    x = torch.randn(5, 4)
    before = x.clone()
    compile_program(Changing(), x)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_rounding_is_no_difference():
    """A badly conditioned network in single precision: the guard measures torch's own rounding."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    with torch.no_grad():
        network[3].weight.copy_(torch.linalg.pinv(network[2].weight)[:3] * 1e3)
        network[3].bias.copy_(-network[3].weight @ network[2](torch.relu(network[0](torch.zeros(8)))))
    with pytest.warns(UserWarning, match="fixed point is off by"):
        compile_program(network, 1e-3 * torch.randn(16, 8))


def test_an_image_that_takes_the_bits_of_all_others_is_told_of():
    """Its own logits are huge; what the others lose is measured against theirs."""
    network, x = Network(["conv", "conv"]), images(12)
    mask_(network, (0.0,))
    x[5] *= 80
    with pytest.warns(UserWarning, match=r"furthest reaches 1\..*e\+04: classes that lie nearer may be mixed up"):
        program = compile_program(network, x)
    assert 0.02 < program.info["fixed_error"] < 0.25
    assert compile_program(network, x, outliers=0.1).info["fixed_error"] < 0.001
