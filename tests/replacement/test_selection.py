"""Selection methods through the interface: every entry of the table, and the soft gate that some will need."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autorep.errors import ConfigError
from autorep.replacement import MaskedActivation, replace_activations_
from autorep.replacement.course import Course
from autorep.replacement.schedule import ramp
from autorep.replacement.selection import SELECTIONS, Selection, selection
from autorep.replacement.settings import CourseSettings, PenaltySettings


def network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3)
    )
    x = torch.randn(24, 1, 6, 6)
    return model, x, torch.arange(24) % 3


def run(steps: int, settings: CourseSettings, budget: int = 20) -> tuple[Course, list[int]]:
    """A short training with this course, and the counts after every step."""
    model, x, y = network()
    replacement = replace_activations_(model, x[:1], budget=budget)
    replacement.begin(model, [(x, y)], steps, settings=settings)
    optimizer = torch.optim.SGD(replacement.weights(), lr=0.01)
    counts = []
    model.train()
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y) + replacement.loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        replacement.step()
        counts.append(replacement.count())
    return replacement.course, counts


def test_ramp_holds_the_exact_count_of_every_step():
    course, counts = run(20, CourseSettings(freeze_at=0.5))
    assert counts == [*(ramp(step, 10, 216, 20) for step in range(1, 10)), *([20] * 11)]
    assert course.handle.frozen


def test_penalty_starts_uniform_follows_moments_and_flips_by_hysteresis():
    settings = CourseSettings(
        method="penalty", penalty=PenaltySettings(weight=2000.0), aux_rate=0.05, freeze_at=1.0, average=0.0
    )
    course, counts = run(60, settings)
    assert counts[0] > 200
    assert counts[-1] < 40  # the penalty pulls auxiliary parameters down until the budget is met
    assert not course.handle.frozen


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_method_answers_the_whole_interface(name):
    method = selection(CourseSettings(method=name))
    assert isinstance(method, Selection)
    assert isinstance(method.settings, method.Settings)
    assert method.state == {}
    with pytest.raises(ConfigError, match="did you mean"):
        selection(CourseSettings(method=name + "s"))


def test_a_soft_gate_mixes_and_trains_by_the_plain_gradient():
    site = MaskedActivation((2, 3, 3))
    site.soft = True
    z = torch.randn(4, 2, 3, 3)
    with torch.no_grad():
        site.aux.fill_(0.3)
    mixed = site(z)
    torch.testing.assert_close(mixed, 0.3 * F.relu(z) + 0.7 * site.poly(z))
    mixed.sum().backward()
    torch.testing.assert_close(site.aux.grad, (F.relu(z) - site.poly(z)).sum(0).detach())
    site.freeze_()
