"""The course in a loop of one's own: what it does at each step, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from autorep.errors import BudgetError, ConfigError
from autorep.replacement import replace_activations_
from autorep.replacement.settings import CourseSettings
from autorep.replacement.stress import REACH, Stress
from tests.replacement.test_selection import network, run


def test_masks_freeze_after_a_quarter_and_averaged_weights_are_taken_at_the_end():
    course, counts = run(20, CourseSettings())
    assert counts[2] > counts[3] == counts[-1] == 20
    model, replacement = course.model, course.handle
    average = {name: value.clone() for name, value in course.average.state.items()}
    assert not torch.equal(model[0].weight, average["0.weight"])
    assert replacement.finalize_() == 0
    assert torch.equal(model[0].weight, average["0.weight"])
    assert all(site.input_limit == math.inf and site.range_limit is None for site in replacement.sites.values())


def test_a_course_that_was_left_early_is_not_cut_down_at_once():
    model, x, y = network()
    replacement = replace_activations_(model, x[:1], budget=20)
    replacement.begin(model, [x], 100)
    with pytest.raises(BudgetError, match=r"after 0 of 100 steps, 193 of 216 ReLUs .* budget is 20: cutting"):
        replacement.finalize_()


def test_without_a_course_a_sudden_cut_warns_with_the_numbers(capsys):
    model, x, _ = network()
    replacement = replace_activations_(model, x[:1], budget=20)
    replacement.finalize_()
    assert "replaces 196 of 216 ReLUs at once to keep 20" in capsys.readouterr().err
    assert replacement.count() == 20


def test_an_optimiser_that_moves_the_courses_parameters_is_noticed():
    model, x, y = network()
    replacement = replace_activations_(model, x[:1], budget=20)
    replacement.begin(model, [x], 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()

    def steps(count: int) -> None:
        for _ in range(count):
            (F.cross_entropy(model(x), y) + replacement.loss()).backward()
            optimizer.step()
            replacement.step()

    with pytest.raises(ConfigError, match=r"replacement.weights\(\)"):
        steps(3)


def test_loss_and_step_need_what_comes_before_them():
    model, x, _ = network()
    replacement = replace_activations_(model, x[:1], budget=20)
    with pytest.raises(ConfigError, match="has not begun"):
        replacement.step()
    replacement.begin(model, [x], 50, settings=CourseSettings(range_weight=0.0))
    with pytest.raises(ConfigError, match="after a training forward"):
        replacement.loss()


def test_stress_pays_for_every_sites_excess_with_running_statistics_and_leaves_no_trace():
    model, x, _ = network()
    model.train()
    model(x)
    replacement = replace_activations_(model, x[:1], budget=0)
    replacement.calibrate_(model, [x])
    replacement.settle_(0)
    stress = Stress(model, replacement, [x], limit=2.0)
    (site,) = replacement.sites.values()
    statistics = model[1].running_mean.clone()
    loud = 5 * x
    loss, logits = stress.loss(loud)
    model.eval()
    z = model[1](model[0](loud)).detach()
    scaled = ((z - site.mean.view(-1, 1, 1)) / site.std.view(-1, 1, 1)).clamp(-REACH, REACH)
    expected = math.log1p(float((scaled.abs() - 2.0).clamp_min(0).square().sum()) / 4)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert logits.shape == (24, 3)
    assert torch.equal(model[1].running_mean, statistics)
    assert (site.range_limit, site.input_limit, site.range_sum) == (None, math.inf, None)


def test_distorted_images_stay_within_the_pixels_of_the_calibration_images():
    model, x, _ = network()
    replacement = replace_activations_(model, x[:1], budget=0)
    stress = Stress(model, replacement, [x], limit=8.0)
    draw = torch.Generator().manual_seed(3)
    some = stress.distort(x, draw)
    assert some.shape == x.shape
    assert float(some.amin()) >= float(x.amin()) - 1e-5
    assert float(some.amax()) <= float(x.amax()) + 1e-5
    assert float(some[0].std()) == 0  # a solid colour
    assert not torch.equal(some, stress.distort(x, draw))
    draw.manual_seed(3)
    assert torch.equal(some, stress.distort(x, draw))


def test_curvature_never_exceeds_what_the_tail_can_bear():
    course, _ = run(12, CourseSettings(curve=1.0, curve_limit=0.05, coefficient_rate=0.5))
    curves = torch.cat([site.hermite()[2] for site in course.handle.sites.values()])
    assert float(curves.max()) == pytest.approx(0.05, rel=1e-4)
