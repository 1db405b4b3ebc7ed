"""Activations other than ReLU under a budget: found as they are called, kept as they are, replaced by DaPa."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.replacement import replace_activations_
from tests.compiler.test_corpus import assert_right
from tests.program.networks import images, settle_

SHAPE = (3, 8, 8)


class Mixed(nn.Module):
    """One activation as a module, as a function, and in place."""

    def __init__(self, module: nn.Module, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.module, self.function, self.fc = module, function, nn.Linear(4, 3)

    def forward(self, x):
        x = self.module(self.norm(self.a(x)))
        return self.fc(self.function(self.b(x)).mean((2, 3)))


CASES = {
    "leaky_relu": (nn.LeakyReLU(0.1), lambda x: F.leaky_relu(x, 0.3, True), [(0.1,), (0.3,)]),
    "hardswish": (nn.Hardswish(), F.hardswish, [(), ()]),
    "gelu": (nn.GELU(), F.gelu, [(), ()]),
    "gelu_tanh": (nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh"), [(), ()]),
    "elu": (nn.ELU(0.7), lambda x: F.elu(x, 1.0), [(0.7,), (1.0,)]),
    "celu": (nn.CELU(0.7), lambda x: F.celu(x, alpha=0.5), [(0.7,), (0.5,)]),
    "softplus": (nn.Softplus(), F.softplus, [(1.0, 20.0), (1.0, 20.0)]),
    "mish": (nn.Mish(), F.mish, [(), ()]),
    "tanh": (nn.Tanh(), lambda x: x.tanh_(), [(), ()]),
    "hardtanh": (nn.Hardtanh(-1, 2), lambda x: F.hardtanh(x, -2.0, 1.0), [(-1.0, 2.0), (-2.0, 1.0)]),
}


@pytest.mark.parametrize("kind", CASES)
def test_half_of_an_activation_is_replaced_and_compiles(kind):
    module, function, arguments = CASES[kind]
    model, x = Mixed(module, function), images(16, shape=SHAPE)
    settle_(model, x)
    with torch.no_grad():
        before = model(x)
    replacement = replace_activations_(model, x[:1], kinds=(kind,))
    assert [site.arguments for site in replacement.sites.values()] == arguments
    with torch.no_grad():
        torch.testing.assert_close(model(x), before, rtol=0, atol=1e-5)
    replacement.calibrate_(model, [x])
    with torch.no_grad():
        for site in replacement.sites.values():
            site.mask.view(-1)[::2] = 0
        half = model(x)
    assert float((half - before).abs().max()) < 0.3 * float(before.abs().max())
    assert_right(compile_program(model, x), model, x[:2], fixed_tolerance=0.02)
