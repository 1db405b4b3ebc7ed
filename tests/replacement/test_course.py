"""The course in a loop of one's own: what it does at each step, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

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
    replacement.calibrate_(model, x)
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
    replacement.settle_(20)
    replacement.begin(model, [x], 50, settings=CourseSettings(range_weight=0.0))
    with pytest.raises(ConfigError, match="after a training forward"):
        replacement.loss()


def test_stress_pays_for_every_images_excess_with_running_statistics_and_leaves_no_trace():
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
    images = [float((image.abs() - 2.0).clamp_min(0).square().sum()) / 4 for image in scaled]
    assert float(loss.detach()) == pytest.approx(sum(map(math.log1p, images)) / len(loud), rel=1e-4)
    assert logits.shape == (24, 3)
    assert torch.equal(model[1].running_mean, statistics)
    assert (site.range_limit, site.input_limit, site.range_sum, site.slope_limit) == (None, math.inf, None, math.inf)


def test_stress_comes_in_every_other_step_once_the_network_settles_with_a_gradient_of_bounded_norm():
    for settings, final, stressed in (
        (CourseSettings(stress_from=0.0), False, [4, 6, 8]),
        (CourseSettings(stress_from=0.5), False, [6, 8]),
        (CourseSettings(stress_from=0.5), True, [0, 2, 4, 6, 8]),
        (CourseSettings(stress_weight=0.0), True, []),
    ):
        model, x, _ = network()
        replacement = replace_activations_(model, x[:1], budget=20)
        if final:
            replacement.calibrate_(model, [x])
            replacement.settle_(20)
        replacement.begin(model, [x], 10, settings=replace(settings, freeze_at=0.4, stress_limit=0.1, range_weight=0.0))
        model.train()
        seen = []
        for step in range(10):
            model(x)
            loss = replacement.loss()
            if float(loss.detach()) > 0:
                seen.append(step)
                loss.backward()
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                norm = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
                assert 0 < float(norm) <= settings.stress_clip * 1.001
                model.zero_grad()
            replacement.step()
        assert seen == stressed


def test_a_network_may_be_a_result_once_its_masks_are_final_and_half_of_its_stress_is_behind_it():
    for settings, final, settled in (
        (CourseSettings(stress_from=0.6), False, [8, 9, 10]),
        (CourseSettings(stress_from=0.6), True, [5, 6, 7, 8, 9, 10]),
        (CourseSettings(stress_weight=0.0), False, [4, 5, 6, 7, 8, 9, 10]),
    ):
        model, x, _ = network()
        replacement = replace_activations_(model, x[:1], budget=20)
        if final:
            replacement.calibrate_(model, [x])
            replacement.settle_(20)
        replacement.begin(model, [x], 10, settings=replace(settings, freeze_at=0.4))
        model.train()
        found = []
        for _ in range(10):
            model(x)
            replacement.loss()
            replacement.step()
            assert replacement.course is not None
            if replacement.course.settled:
                found.append(replacement.course.taken)
        assert found == settled


def test_half_of_the_stressed_images_are_those_that_went_furthest():
    model, x, _ = network()
    stress = Stress(model, replace_activations_(model, x[:1], budget=0), [x], limit=8.0)
    sums = torch.ones(3, len(x))
    sums[0, 5], sums[2, 9] = 30.0, 20.0
    sums[1] *= 1e6  # a site where every image goes far tells nothing about any
    draw = torch.Generator().manual_seed(3)
    some = stress.images(x, sums, 4, draw)
    assert len(some) == 4
    assert torch.equal(some[:2], x[[5, 9]])
    assert len(stress.images(x[:3], sums[:, :3], 8, draw)) == 2
    assert len(stress.images(x[:1], sums[:, :1], 8, draw)) == 2
    assert torch.equal(stress.images(x, None, 4, draw)[:2], x[:2])


def test_inputs_are_cut_off_ever_later_after_the_freeze():
    model, x, _ = network()
    replacement = replace_activations_(model, x[:1], budget=20)
    replacement.begin(model, [x], 8, settings=CourseSettings(input_limit=5.0, input_opening=3.0, stress_weight=0.0))
    model.train()
    (site,) = replacement.sites.values()
    limits = []
    for _ in range(8):
        limits.append(site.input_limit)
        model(x)
        replacement.loss()
        replacement.step()
    assert limits == pytest.approx([5, 5, *(5 + 10 * k / 6 for k in range(6))])


def test_a_network_with_final_masks_goes_on_from_where_it_is():
    model, x, _ = network()
    replacement = replace_activations_(model, x[:1], budget=20)
    replacement.calibrate_(model, [x])
    replacement.settle_(20)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    replacement.begin(model, [5 * x], 10)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.train()
    (site,) = replacement.sites.values()
    limits = []
    for _ in range(10):
        limits.append(site.input_limit)
        (model(x).square().mean() + replacement.loss()).backward()
        replacement.step()
    assert replacement.finalize_() == 0
    assert limits == pytest.approx([8 * (1 + step / 10) for step in range(10)])
    assert torch.equal(site.mask, before["2.mask"])
    assert not torch.equal(site.coefficients, before["2.coefficients"])


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
