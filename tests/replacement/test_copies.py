"""Replaced models are copied and saved whole, as any module is, also in the middle of a course."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn
from torch.nn import functional as F

from autorep.replacement import CourseSettings, attach, replace_activations_
from tests.replacement.networks import Everything

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_replaced_model_is_saved_whole_with_its_rewritten_forwards() -> None:
    torch.manual_seed(0)
    model = Everything()
    replacement = replace_activations_(model, IMAGES, budget=100)
    replacement.calibrate_(model, [IMAGES])
    replacement.start_uniform_()
    replacement.finalize_()
    again = saved_and_loaded(model)
    assert type(again).__name__ == "Everything"
    assert torch.equal(again.eval()(IMAGES), model.eval()(IMAGES))
    for training in (False, True):
        torch.manual_seed(1)
        expected = model.train(training)(IMAGES)
        torch.manual_seed(1)
        assert torch.equal(again.train(training)(IMAGES), expected)
    assert repr(attach(again)) == repr(replacement)
    twice = saved_and_loaded(copy.deepcopy(again))
    assert torch.equal(twice.eval()(IMAGES), model.eval()(IMAGES))


def test_copies_in_the_middle_of_a_course_do_not_disturb_it() -> None:
    def course(copied: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Everything()
        replacement = replace_activations_(model, IMAGES, budget=200)
        replacement.begin(model, [IMAGES], total_steps=8, settings=CourseSettings(warmup=0))
        optimizer = torch.optim.SGD(replacement.weights(), lr=0.001)
        for step in range(8):
            if copied and step in (1, 5):
                for twin in (copy.deepcopy(model), saved_and_loaded(model)):
                    twin.train()(IMAGES)
            torch.manual_seed(step)
            loss = F.cross_entropy(model.train()(IMAGES), torch.arange(6) % 3) + replacement.loss()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            replacement.step()
        replacement.finalize_()
        return [value.clone() for value in model.state_dict().values()]

    assert all(torch.equal(one, two) for one, two in zip(course(False), course(True)))
