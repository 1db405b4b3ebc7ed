"""The parts of training: schedules, teacher, averages, saved models, settings."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autorep import models
from autorep.errors import CheckpointError, ConfigError
from autorep.replacement import replace_activations_
from autorep.replacement.averaging import WeightAverage
from autorep.replacement.schedule import cosine, ramp
from autorep.replacement.softened import distillation
from autorep.settings import parse
from autorep.training.distillation import FeatureTap, Teacher, feature_distance, fold_batch_norm
from autorep.training.parallel import Processes
from autorep.training.saved import load_model, save_model
from autorep.training.settings import RECIPES, ReplaceSettings, TrainSettings

INFO = {
    "model": "digits_net",
    "num_classes": 10,
    "input_shape": [1, 8, 8],
    "data": "digits",
    "classes": [str(i) for i in range(10)],
    "mean": [0.3],
    "std": [0.4],
}


@given(st.integers(1, 400), st.floats(0, 0.5), st.integers(0, 1000), st.integers(1000, 100_000))
@settings(max_examples=40, deadline=None)
def test_ramp_never_rises_and_ends_at_the_budget(steps, warmup, budget, total):
    kept = [ramp(step, steps, total, budget) for step in range(steps + 1)]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] <= total
    assert kept[steps - 1] == kept[steps] == budget
    rates = [cosine(step, steps, warmup) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)


def test_cosine_rises_then_falls_to_nothing():
    rates = [cosine(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001


def test_inputs_are_held_in_training_only_and_only_the_range_penalty_pulls_them_back():
    model = nn.Sequential(nn.ReLU())
    handle = replace_activations_(model, torch.zeros(1, 1, 1, 3))
    handle.settle_(0)
    (site,) = handle.sites.values()
    x = torch.tensor([-50.0, 1.0, 50.0]).view(1, 1, 1, 3).requires_grad_()
    free = model.train()(x)
    handle.limit_inputs(3.0)
    handle.track_range(2.0)
    held = model(x)
    expected = site.poly(torch.tensor([-3.0, 1.0, 3.0]).view(1, 1, 1, 3))
    torch.testing.assert_close(held, expected, rtol=1e-5, atol=1e-5)
    (task,) = torch.autograd.grad(held.sum(), x, retain_graph=True)
    assert (task.flatten() != 0).tolist() == [False, True, False]
    (pull,) = torch.autograd.grad(handle.range_penalty(), x)
    assert pull.flatten().sign().tolist() == [-1, 0, 1]
    torch.testing.assert_close(model.eval()(x), free)


def trained_looking(name: str) -> nn.Module:
    """A network whose batch norms are far from the identity."""
    torch.manual_seed(0)
    model = models.create(name, 10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 2)
            for tensor in (module.bias.data, module.running_mean):
                tensor.normal_()
    return model.eval()


@pytest.mark.parametrize("name", ["digits_net", "wide_resnet22_8"])
def test_folding_batch_norm_keeps_the_function(name):
    entry = models.spec(name)
    model = trained_looking(name)
    x = torch.randn(2, entry.channels, 8, 8)
    folded = fold_batch_norm(model)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-3, atol=1e-3)
    left = sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert left < sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_a_teacher_gives_stage_features_and_does_not_change():
    model = trained_looking("digits_net")
    teacher = Teacher(model, models.spec("digits_net").stages)
    x = torch.randn(3, 1, 8, 8)
    logits, features = teacher(x)
    assert [tuple(f.shape) for f in features] == [(3, 16, 8, 8), (3, 32, 4, 4)]
    assert not logits.requires_grad
    with torch.no_grad():
        model.fc.weight.zero_()
    assert torch.equal(teacher(x)[0], logits)


def test_student_features_are_found_after_replacement():
    model = trained_looking("digits_net")
    x = torch.randn(2, 1, 8, 8)
    replace_activations_(model, x)
    tap = FeatureTap(model, models.spec("digits_net").stages)
    model(x)
    assert len(tap.take()) == 2


def test_distillation_is_zero_for_the_teacher_itself_and_kl_otherwise():
    teacher, student = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.0, 1.0, 0.5]])
    assert float(distillation(teacher, teacher, 4.0)) == pytest.approx(0.0, abs=1e-6)
    p, q = torch.softmax(teacher / 4, 1), torch.softmax(student / 4, 1)
    assert float(distillation(student, teacher, 4.0)) == pytest.approx(float(16 * (p * (p / q).log()).sum()), rel=1e-5)


def test_feature_distance_and_its_gradient_follow_the_formula():
    torch.manual_seed(0)
    own = [torch.randn(4, 3, 5, 5, requires_grad=True), torch.randn(4, 6, requires_grad=True)]
    other = [torch.randn(4, 3, 5, 5), torch.randn(4, 6)]
    plain = torch.stack([(a - b).square().mean() / b.square().mean() for a, b in zip(own, other)]).mean()
    expected = torch.autograd.grad(plain, own)
    distance = feature_distance(own, other)
    torch.testing.assert_close(distance, plain)
    for mine, theirs in zip(torch.autograd.grad(distance, own), expected):
        torch.testing.assert_close(mine, theirs)


def test_feature_distance_is_relative():
    features = [torch.randn(2, 3, 4, 4), torch.randn(2, 5)]
    assert float(feature_distance(features, features)) == 0.0
    assert float(feature_distance([0 * f for f in features], features)) == pytest.approx(1.0)


def test_weight_average_forgets_its_start_and_can_be_applied():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    average = WeightAverage(model, decay=0.9)
    expected = 0.0
    for step in range(1, 30):
        nn.init.constant_(model.weight, float(step))
        average.update_()
        decay = min(0.9, step / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with average.applied():
        assert float(model.weight.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(model.weight.detach()) == 29.0


@given(st.integers(1, 64), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_shares_of_processes_and_parts_cover_a_batch_once(batch, count, parts):
    pieces = [
        Processes(r, count, torch.device("cpu")).share(batch, p, parts) for p in range(parts) for r in range(count)
    ]
    assert [i for piece in pieces for i in range(batch)[piece]] == list(range(batch))


def replaced_model():
    model = trained_looking("digits_net")
    replacement = replace_activations_(model, torch.randn(2, 1, 8, 8), budget=333)
    replacement.calibrate_(model, [torch.randn(16, 1, 8, 8)])
    generator = torch.Generator().manual_seed(1)
    replacement.start_uniform_(generator)
    replacement.finalize_()
    return model


def test_a_saved_model_comes_back_the_same_with_masks_as_bits(tmp_path):
    model = replaced_model()
    save_model(tmp_path / "small", model, INFO)
    saved = load_model(tmp_path / "small.json")
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(saved.model(x), model.eval()(x))
    assert saved.replacement is not None
    assert saved.replacement.count() == saved.info["relus"] == 333
    assert saved.replacement.frozen
    assert not saved.model.training
    plain = sum(p.numel() for n, p in model.state_dict().items() if not n.endswith((".mask", ".aux"))) * 4
    assert (tmp_path / "small.safetensors").stat().st_size < plain + 4096 // 8 + 12_000


def test_a_baseline_is_saved_without_replacement(tmp_path):
    model = trained_looking("digits_net")
    save_model(tmp_path / "model", model, INFO)
    saved = load_model(tmp_path)
    assert saved.replacement is None
    assert torch.equal(saved.model(torch.ones(1, 1, 8, 8)), model(torch.ones(1, 1, 8, 8)))


def test_damaged_saved_models_are_refused(tmp_path):
    save_model(tmp_path / "m", replaced_model(), INFO)
    with pytest.raises(CheckpointError, match="no such file"):
        load_model(tmp_path / "other.json")
    description = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps(description | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        load_model(tmp_path / "m.json")
    (tmp_path / "m.json").write_text(json.dumps(description))
    whole = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        load_model(tmp_path / "m.json")


def test_a_recipe_is_a_complete_set_of_settings_that_may_be_changed():
    settings = ReplaceSettings.of("faithful", learning_rate=0.5)
    assert (settings.recipe, settings.method, settings.learning_rate) == ("faithful", "penalty", 0.5)
    assert ReplaceSettings.of("autorep") == ReplaceSettings()
    known = {field.name for field in dataclasses.fields(ReplaceSettings)}
    assert all(values.keys() <= known for values in RECIPES.values())
    optional = {field.name for field in dataclasses.fields(ReplaceSettings) if field.default is None}
    assert optional == {"data_path", "image_size", "start", "threads", "weights"}


def test_a_recipe_file_and_flags_override_the_recipe_in_this_order(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('recipe = "faithful"\npenalty.weight = 500.0\nepochs = 3\nclip = 2.0\n')
    settings = parse(ReplaceSettings, ["--config", str(file), "--epochs", "4"], "autorep replace")
    assert (settings.method, settings.penalty.weight, settings.clip, settings.epochs) == ("penalty", 500.0, 2.0, 4)
    ours = parse(ReplaceSettings, ["--config", str(file), "--recipe", "autorep"], "autorep replace")
    assert (ours.method, ours.recipe, ours.clip, ours.average) == ("ramp", "autorep", 2.0, 0.99)
    with pytest.raises(ConfigError, match="did you mean 'faithful'"):
        parse(ReplaceSettings, ["--recipe", "faithfull"], "autorep replace")


@pytest.mark.parametrize(
    "wrong",
    [
        {"held_out": 1.0},
        {"batch_size": 0},
        {"accumulate": 0},
        {"epochs": -1},
        {"freeze_at": 2.0},
        {"budget": -3},
        {"stress_images": 0},
    ],
)
def test_senseless_settings_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} = "):
        ReplaceSettings(**wrong)
    if "held_out" in wrong:
        with pytest.raises(ConfigError):
            TrainSettings(**wrong)
