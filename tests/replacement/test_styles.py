"""Styles that replacement must follow or refuse: keyword calls, hooks, activations of constants, no copies."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autorep.compiler.compile import compile_program
from autorep.errors import TraceError, UnsupportedOpError
from autorep.replacement import replace_activations_
from tests.program.networks import images


class Styled(nn.Module):
    """A convolution, an activation module, and a head; what is in between is a case's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv, self.act, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.seen: dict[str, Tensor] = {}
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(self.stem(x)).mean((2, 3)))

    def body(self, y: Tensor) -> Tensor:
        return self.act(y)


class Keyword(Styled):
    def body(self, y):
        return self.act(input=self.conv(input=y))


class OfAParameter(Styled):
    def body(self, y):
        return self.act(y) * F.relu(self.scale)


class OfAFlatBatch(Styled):
    def body(self, y):
        return self.act(y.view(-1, y.shape[-1])).view(y.shape)


class Remembering(Styled):
    """A hook leaves the activation where forward finds it; the hook of a copy still writes into the original."""

    def __init__(self) -> None:
        super().__init__()
        self.act.register_forward_hook(lambda module, args, output: self.seen.update(act=output))

    def body(self, y):
        return self.conv(self.act(y)) + self.seen["act"]


class Hooked(Styled):
    def __init__(self) -> None:
        super().__init__()
        self.act.register_forward_hook(lambda module, args, output: 2 * output)


def half(x: Tensor) -> Tensor:
    return 0.5 * x


class Scripted(Styled):
    def __init__(self) -> None:
        super().__init__()
        self.function = torch.jit.script(half)

    def body(self, y):
        return self.function(self.act(y))


class ByChance(Styled):
    def body(self, y):
        return self.act(y) if random.random() < 0.999 else y


@pytest.mark.parametrize("cls", [Keyword, OfAParameter])
def test_a_replaced_model_computes_and_compiles(cls):
    model, x = cls(), images(6)
    with torch.no_grad():
        before = model(x)
        replacement = replace_activations_(model, x[:1])
        torch.testing.assert_close(model(x), before)
        replacement.calibrate_(model, [x])
        next(iter(replacement.sites.values())).mask.view(-1)[::2] = 0
        expected = model(x).numpy()
    np.testing.assert_allclose(compile_program(model, x).run(x.numpy()), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("cls", "match"),
    [(Remembering, "computes something else"), (Hooked, "a hook"), (Scripted, "cannot be copied.* scripted")],
)
def test_a_model_that_cannot_be_replaced_is_refused_and_left_alone(cls, match):
    model, x = cls(), images(4)
    with torch.no_grad():
        before = model(x)
        with pytest.raises(TraceError, match=match):
            replace_activations_(model, x[:1])
        torch.testing.assert_close(model(x), before)


def test_a_replaced_activation_of_a_flattened_batch_is_refused():
    model, x = OfAFlatBatch(), images(4)
    replacement = replace_activations_(model, x[:1])
    replacement.calibrate_(model, [x])
    next(iter(replacement.sites.values())).mask.view(-1)[::2] = 0
    with pytest.raises(UnsupportedOpError, match="keep the batch first"):
        compile_program(model, x)


def test_a_forward_that_throws_dice_is_refused_and_left_alone():
    model, x = ByChance(), images(1)
    with pytest.raises(TraceError, match="draws random numbers .Python's random."):
        replace_activations_(model, x)
    assert "forward" not in vars(model)
