"""PReLU: its ReLU is replaced under a budget, its learned slopes stay what they were."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.errors import TraceError
from autorep.replacement import count_relus, replace_activations_
from tests.compiler.test_corpus import assert_right
from tests.program.networks import CURVE, images, settle_


class Learned(nn.Module):
    """One slope, one slope a channel, one module called twice, one after a linear layer, and a plain ReLU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm, self.conv = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.one, self.each, self.relu = nn.PReLU(), nn.PReLU(4), nn.ReLU()
        self.fc, self.flat, self.head = nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 3)
        with torch.no_grad():
            self.each.weight.copy_(torch.tensor([0.2, -0.4, 1.0, 1.5]))

    def forward(self, x):
        x = self.each(self.conv(self.each(self.norm(self.stem(x)))))
        x = self.relu(self.conv(self.one(x)))
        return self.head(self.flat(self.fc(x.mean((2, 3)))))


def learned() -> tuple[Learned, torch.Tensor]:
    model, x = Learned(), images(16)
    settle_(model, x)
    return model, x


def test_a_replaced_prelu_is_right_in_every_mode():
    model, x = learned()
    before, names = model(x), set(model.state_dict())
    replacement = replace_activations_(model, x[:2], budget=0.5, kinds=("relu", "prelu"))
    torch.testing.assert_close(model(x), before)
    assert names <= set(model.state_dict())
    assert len(replacement.sites) == 5
    replacement.calibrate_(model, [x], curve=CURVE)
    for number, site in enumerate(replacement.sites.values()):
        site.mask.view(-1)[number % 2 :: 3] = 0
    assert (model(x) - before).abs().max() > 1e-3
    assert_right(compile_program(model, x), model, x[:4])
    assert_right(compile_program(copy.deepcopy(model), x), model, x[:2])


def test_only_what_is_named_is_replaced():
    model, x = learned()
    assert count_relus(model, x[:1], ("prelu",))["total"] == 3 * 4 * 14 * 14 + 6
    assert count_relus(model, x[:1], ("relu",))["total"] == 4 * 14 * 14
    assert "relu" not in replace_activations_(model, x[:1], kinds=("prelu",)).sites


def test_slopes_go_on_training():
    model, x = learned()
    replacement = replace_activations_(model, x[:2], kinds=("prelu",))
    replacement.calibrate_(model, [x])
    model.train()(x).sum().backward()
    assert all(layer.weight.grad.abs().sum() > 0 for layer in (model.one, model.each, model.flat))


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.slope = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 0.1))

    def forward(self, x):
        return F.prelu(self.fc(x), self.slope)


def test_what_cannot_be_replaced_says_what_to_do():
    with pytest.raises(TraceError, match=r"use the module nn\.PReLU"):
        replace_activations_(Functional(), torch.zeros(1, 4), kinds=("prelu",))
    with pytest.raises(TraceError, match=r"also has silu, prelu: name in `kinds`"):
        replace_activations_(nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.SiLU()), torch.zeros(1, 4))
