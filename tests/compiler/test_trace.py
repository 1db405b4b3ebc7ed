"""What the tracer understands, and how it lists what it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autorep.compiler.compile import check, compile_program
from autorep.errors import TraceError
from tests.program.networks import Network, images


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.SiLU()
        self.norm = nn.GroupNorm(2, 4)
        self.pool = nn.AvgPool2d(3, 2, ceil_mode=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(self.act(self.conv(x)))
        x = F.gelu(x)
        x = self.pool(x)
        x = x.to(torch.int32).to(torch.float32) + torch.rand(1)
        return F.softmax(self.fc(x.mean((2, 3))), 1)


def test_check_lists_everything_at_once_with_path_line_and_advice():
    problems = check(Unsupported(), images(1))
    found = {problem.operation: problem for problem in problems}
    assert set(found) == {"GroupNorm", "softmax", "to", "rand"}
    assert found["GroupNorm"].path == "norm"
    assert "BatchNorm2d" in found["GroupNorm"].advice
    assert "logits" in found["softmax"].advice
    file, line = found["rand"].source.rsplit(":", 1)
    assert Path(file) == Path(__file__)
    assert "torch.rand" in Path(file).read_text().splitlines()[int(line) - 1]


def softened(x):
    return torch.exp(-x.abs())  # the line of the helper


def rooted(x):
    """The helper of a helper, in a comprehension."""
    return sum(softened(part) for part in x.chunk(2, 1))


class Helped(nn.Module):
    """Its unsupported calls stand in functions, a method, a hook and a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.block[0].register_forward_hook(lambda module, args, output: output.cos())  # the line of the hook
        self.fc = nn.Linear(2, 2)

    def pooled(self, x):
        return x.mean((2, 3)).argsort(1).float()  # the line of the method

    def forward(self, x):
        last = lambda y: self.fc(y).sin()  # noqa: E731  # the line of the closure
        return last(self.pooled(rooted(self.block(x))))


def test_a_line_in_a_helper_is_named_itself():
    problems = check(Helped(), images(1))
    lines = Path(__file__).read_text().splitlines()
    for operation, path, place in (
        ("exp", "exp", "helper"),
        ("cos", "block.0.cos", "hook"),
        ("argsort", "argsort", "method"),
        ("sin", "sin", "closure"),
    ):
        found = [problem for problem in problems if problem.operation == operation]
        assert found, problems
        for problem in found:
            file, line = problem.source.rsplit(":", 1)
            assert Path(file) == Path(__file__)
            assert lines[int(line) - 1].endswith(f"the line of the {place}"), (problem, lines[int(line) - 1])
            assert problem.path == path


def test_a_layer_without_code_of_the_users_is_named_by_its_class():
    """Not by the line that called the compiler."""
    (problem,) = check(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), images(1))
    assert problem.path == "1"
    assert Path(problem.source.rsplit(":", 1)[0]).name == "normalization.py"


def test_check_guesses_an_input_and_is_empty_for_a_good_network():
    assert check(Network(["residual", "gate", "maximum"])) == []
    assert check(nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 2))) == []
    with pytest.raises(TraceError, match="pass an example"):
        check(nn.ReLU())


def test_control_flow_on_data_is_a_trace_error():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(TraceError, match="Branching"):
        check(Branching(), images(1))


def test_an_example_of_the_wrong_shape_is_a_trace_error():
    with pytest.raises(TraceError, match=r"stem\.0 .* fails on an input of shape \(2, 5, 16, 16\)"):
        check(Network(["conv"]), torch.zeros(1, 5, 16, 16))


class Functional(nn.Module):
    """Every spelling of the same operations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3, 3, 3) / 5), nn.Parameter(torch.randn(4))
        self.scale = nn.Parameter(torch.rand(4, 1, 1))
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4 * 64, 6)

    def forward(self, x):
        x = F.conv2d(x, self.weight, self.bias, padding=1)
        x = self.relu(x) * self.scale
        x = self.relu(x + 0.5) / 2
        x = torch.clamp(x, 0.1, 0.9) + F.relu6(x).mul(0.5)
        x = F.max_pool2d(x, 2) + F.adaptive_max_pool2d(x, 8) - 0.25
        x = F.hardtanh(x, -1, 2)
        x = F.dropout(x, training=self.training).contiguous()
        return self.fc(torch.flatten(x, 1).relu())


def test_functional_spellings_and_reused_modules_equal_torch():
    torch.manual_seed(0)
    network, x = Functional().eval(), images(8)
    program = compile_program(network, x)
    with torch.no_grad():
        expected = network(x).numpy()
    np.testing.assert_allclose(program.run(x.numpy()), expected, atol=1e-5)
    assert np.abs(program.run(x.numpy(), "fixed") - expected).max() < 5e-3


class LinearGate(nn.Module):
    """Squeeze and excitation written with linear layers and views."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        batch, channels, _, _ = x.size()
        gate = torch.sigmoid(self.fc(x.mean(dim=[2, 3]))).view(batch, channels, 1, 1)
        x = x * gate.expand_as(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1).reshape(batch, -1))


def test_gate_through_linear_layers_equals_torch():
    torch.manual_seed(0)
    network, x = LinearGate().eval(), images(8)
    program = compile_program(network, x)
    with torch.no_grad():
        expected = network(x).numpy()
    np.testing.assert_allclose(program.run(x.numpy()), expected, atol=1e-5)
    assert np.abs(program.run(x.numpy(), "fixed") - expected).max() < 5e-3


def test_unused_branches_vanish():
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.unused = nn.Linear(4, 2), nn.Linear(4, 3)

        def forward(self, x):
            self.unused(x)
            return self.fc(x)

    program = compile_program(Auxiliary(), torch.randn(4, 4))
    assert [op.name for op in program.ops] == ["input", "fc"]
