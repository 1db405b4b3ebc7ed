"""The whole recipe on digits: accuracy at every stage, exact counts, exact resume, several ways to run it."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from autorep.cli.main import main
from autorep.errors import BudgetError, CheckpointError, ConfigError
from autorep.provenance import commit
from autorep.replacement.settings import PenaltySettings
from autorep.training import ReplaceSettings, TrainSettings, recipe, replace, train_baseline
from autorep.training.runs import load_tensors, read_log
from autorep.training.saved import load_model
from autorep.training.trainer import Trainer


class Interrupted(Exception):
    pass


def stop_at(monkeypatch, step: int) -> None:
    """Make the run fail just before a step, as a power cut would."""
    original = Trainer.gradients_

    def gradients(trainer, at, loss_of):
        if at == step:
            raise Interrupted
        return original(trainer, at, loss_of)

    monkeypatch.setattr(Trainer, "gradients_", gradients)


def same_files(one, other) -> bool:
    first, second = load_tensors(one / "model.safetensors")[0], load_tensors(other / "model.safetensors")[0]
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def untimed(directory) -> list[dict]:
    clock = ("seconds", "images_per_second")
    log = [entry for entry in read_log(directory) if entry["event"] != "start"]
    return [{key: value for key, value in entry.items() if key not in clock} for entry in log]


def test_baseline_learns_digits(baseline):
    out, result = baseline
    assert result["test_accuracy"] >= 95
    assert load_model(out).info["result"]["test_accuracy"] == result["test_accuracy"]
    epochs = [entry for entry in read_log(out) if entry["event"] == "epoch"]
    assert [entry["epoch"] for entry in epochs] == list(range(1, 16))


def test_default_recipe_keeps_exactly_the_budget_and_the_accuracy(baseline, tmp_path):
    out, before = baseline
    settings = ReplaceSettings(
        weights=out / "model.safetensors", budget=0.05, epochs=10, out=tmp_path / "run", plots=True
    )
    result = replace(settings)
    assert result["relus"] == 205
    assert result["test_accuracy"] >= before["test_accuracy"] - 4
    log = read_log(tmp_path / "run")
    stages = {key for entry in log if entry["event"] == "stages" for key in entry}
    assert {"baseline", "calibrated", "frozen"} <= stages
    counts = [entry["relus"] for entry in log if entry["event"] == "epoch"]
    assert counts == sorted(counts, reverse=True)
    assert counts[4:] == [205] * 6
    assert (tmp_path / "run" / "run.png").stat().st_size > 10_000
    assert load_model(tmp_path / "run").replacement.count() == 205


@pytest.mark.parametrize(("rate", "told"), [(1e-6, "above its budget of 1,000; they were cut"), (0.5, "put back")])
def test_a_count_that_misses_its_budget_is_told_with_its_side(baseline, tmp_path, capsys, rate, told):
    settings = {"weights": baseline[0] / "model.safetensors", "budget": 1000, "epochs": 1, "lost_among": 1}
    heavy = PenaltySettings(weight=1e6)
    result = replace(ReplaceSettings.of("faithful", penalty=heavy, aux_rate=rate, out=tmp_path / "run", **settings))
    assert result["relus"] == 1000
    assert told in capsys.readouterr().err


def test_faithful_recipe_ends_at_exactly_the_budget(baseline, tmp_path):
    settings = ReplaceSettings.of(
        "faithful",
        weights=baseline[0] / "model.safetensors",
        penalty=PenaltySettings(weight=500.0),
        aux_rate=0.02,
        learning_rate=1e-3,
        budget=1000,
        epochs=8,
        out=tmp_path / "run",
    )
    result = replace(settings)
    assert result["relus"] == 1000
    assert result["test_accuracy"] > 85
    log = read_log(tmp_path / "run")
    assert any("finalised" in entry for entry in log)
    epochs = [entry for entry in log if entry["event"] == "epoch"]
    assert epochs[0]["relus"] > epochs[-1]["relus"]


@pytest.mark.parametrize(("until", "share"), [("freeze", 0.25), ("end", 1.0)])
def test_features_are_matched_until_the_freeze_or_to_the_end(baseline, tmp_path, monkeypatch, until, share):
    calls = []
    original = recipe.feature_distance
    monkeypatch.setattr(recipe, "feature_distance", lambda *a: calls.append(1) or original(*a))
    settings = ReplaceSettings(
        weights=baseline[0] / "model.safetensors", budget=0.2, epochs=4, features_until=until, out=tmp_path / "run"
    )
    steps = replace(settings)["step"]
    assert len(calls) == round(share * steps)


def test_no_epochs_replaces_by_calibration_alone(baseline, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "FeatureTap", None)  # a student that is not trained has no features to match
    monkeypatch.setattr(recipe, "fit_without_training_", partial(recipe.fit_without_training_, steps=40))
    weights = baseline[0] / "model.safetensors"
    result = replace(ReplaceSettings(weights=weights, budget=0.5, epochs=0, lost_among=100, out=tmp_path / "run"))
    assert result["relus"] == 2048
    assert result["lost_of"] == 100
    assert result["test_accuracy"] > 85
    assert result["seconds"] > 0


@pytest.mark.parametrize("cut", [7, 23, 36])
def test_an_interrupted_replacement_resumes_bit_for_bit(baseline, tmp_path, monkeypatch, cut):
    common = {"weights": baseline[0] / "model.safetensors", "budget": 0.1, "epochs": 4, "checkpoint_every": 3}
    replace(ReplaceSettings(out=tmp_path / "whole", **common))
    with monkeypatch.context() as patch:
        stop_at(patch, cut)
        with pytest.raises(Interrupted):
            replace(ReplaceSettings(out=tmp_path / "cut", **common))
    replace(ReplaceSettings(out=tmp_path / "cut", resume=True, **common))
    assert same_files(tmp_path / "whole", tmp_path / "cut")
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "cut")
    starts = [entry for entry in read_log(tmp_path / "cut") if entry["event"] == "start"]
    assert starts[0]["step"] == 0
    assert cut - 3 < starts[1]["step"] <= cut
    assert {entry["commit"] for entry in starts} == {commit(Path(recipe.__file__).parent)}


def test_a_replaced_model_is_trained_on_with_its_masks(baseline, tmp_path):
    common = {"weights": baseline[0] / "model.safetensors", "epochs": 1}
    first = replace(ReplaceSettings(budget=400, out=tmp_path / "first", **common))
    second = replace(ReplaceSettings(budget=400, start=tmp_path / "first", out=tmp_path / "second", **common))
    assert second["held_out_accuracy"] >= first["held_out_accuracy"] - 5
    before, after = load_model(tmp_path / "first"), load_model(tmp_path / "second")
    for name, site in after.replacement.sites.items():
        assert torch.equal(site.mask, before.replacement.sites[name].mask)
        assert torch.equal(site.std, before.replacement.sites[name].std)
        assert not torch.equal(site.coefficients, before.replacement.sites[name].coefficients)
    with pytest.raises(ConfigError, match="keeps 400 ReLUs and the budget is 300; give --budget 400"):
        replace(ReplaceSettings(budget=300, start=tmp_path / "first", out=tmp_path / "third", **common))
    with pytest.raises(ConfigError, match="no activation of this model is replaced"):
        replace(ReplaceSettings(budget=300, start=baseline[0], out=tmp_path / "fourth", **common))


def test_an_interrupted_faithful_run_and_baseline_resume_bit_for_bit(baseline, tmp_path, monkeypatch):
    weights = baseline[0] / "model.safetensors"
    jobs = {
        "faithful": (replace, partial(ReplaceSettings.of, "faithful"), {"weights": weights, "budget": 100}),
        "baseline": (train_baseline, TrainSettings, {}),
        "taught": (train_baseline, TrainSettings, {"teacher": baseline[0], "small_sizes": (8,)}),
    }
    for name, (function, kind, options) in jobs.items():
        common = {"epochs": 2, "checkpoint_every": 4, **options}
        function(kind(out=tmp_path / f"{name}-whole", **common))
        with monkeypatch.context() as patch:
            stop_at(patch, 9)
            with pytest.raises(Interrupted):
                function(kind(out=tmp_path / f"{name}-cut", **common))
        function(kind(out=tmp_path / f"{name}-cut", resume=True, **common))
        assert same_files(tmp_path / f"{name}-whole", tmp_path / f"{name}-cut")


def test_a_teacher_shortens_a_baselines_training_and_must_know_the_same_images(baseline, tmp_path):
    alone = train_baseline(TrainSettings(epochs=1, out=tmp_path / "alone"))
    taught = train_baseline(TrainSettings(epochs=1, teacher=baseline[0], out=tmp_path / "taught"))
    assert taught["held_out_accuracy"] > alone["held_out_accuracy"]
    other = json.loads((baseline[0] / "model.json").read_text())
    for file in ("model.json", "model.safetensors"):
        (tmp_path / file).write_bytes((baseline[0] / file).read_bytes())
    (tmp_path / "model.json").write_text(json.dumps(other | {"mean": [0.5]}))
    with pytest.raises(ConfigError, match="has other mean than digits"):
        train_baseline(TrainSettings(epochs=1, teacher=tmp_path / "model.json", out=tmp_path / "refused"))


def test_a_run_is_not_overwritten_and_not_resumed_with_other_settings(baseline, tmp_path):
    common = {"weights": baseline[0] / "model.safetensors", "epochs": 1, "out": tmp_path / "run"}
    replace(ReplaceSettings(budget=100, **common))
    with pytest.raises(ConfigError, match="already holds a run"):
        replace(ReplaceSettings(budget=100, **common))
    with pytest.raises(ConfigError, match=r"budget was 100(\.0)?, is 90"):
        replace(ReplaceSettings(budget=90, resume=True, **common))
    with pytest.raises(ConfigError, match="holds no run to resume"):
        train_baseline(TrainSettings(resume=True, out=tmp_path / "nothing"))


def test_a_damaged_checkpoint_is_refused(baseline, tmp_path):
    common = {"weights": baseline[0] / "model.safetensors", "epochs": 1, "out": tmp_path / "run", "budget": 10}
    replace(ReplaceSettings(**common))
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="damaged"):
        replace(ReplaceSettings(resume=True, **common))


def test_impossible_budgets_are_refused_before_training(baseline, tmp_path):
    weights = baseline[0] / "model.safetensors"
    with pytest.raises(BudgetError, match="4096"):
        replace(ReplaceSettings(weights=weights, budget=5000, out=tmp_path / "a"))
    with pytest.raises(ConfigError, match="whole number"):
        replace(ReplaceSettings(weights=weights, budget=10.5, out=tmp_path / "b"))
    with pytest.raises(ConfigError, match="resnet20 takes images of 3 channels and digits has 1"):
        replace(ReplaceSettings(model="resnet20", weights=weights, out=tmp_path / "d"))
    with pytest.raises(ConfigError, match="give --weights"):
        replace(ReplaceSettings(out=tmp_path / "c"))


def test_a_missing_extra_is_named_before_training_starts(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    with pytest.raises(ConfigError, match=r"pip install 'autorep\[tensorboard\]'"):
        train_baseline(TrainSettings(epochs=1, tensorboard=True, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_every_epoch(tmp_path):
    train_baseline(TrainSettings(epochs=2, tensorboard=True, out=tmp_path / "run"))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    logged = [entry for entry in read_log(tmp_path / "run") if entry["event"] == "epoch"]
    for name in ("loss", "train_accuracy", "held_out_accuracy", "learning_rate"):
        assert [event.step for event in events.Scalars(name)] == [1, 2]
        assert [event.value for event in events.Scalars(name)] == pytest.approx([entry[name] for entry in logged])


def test_accumulated_parts_make_the_same_first_step(tmp_path):
    losses = []
    for parts in (1, 4):
        settings = TrainSettings(epochs=1, batch_size=1000, accumulate=parts, out=tmp_path / str(parts), augment=False)
        train_baseline(settings)
        losses.append(read_log(tmp_path / str(parts))[1]["loss"])
    # Batch norm sees smaller parts, so the two agree closely but not exactly.
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_commands_read_toml_and_flags_and_write_json(baseline, tmp_path, capsys):
    recipe_file = tmp_path / "r.toml"
    recipe_file.write_text(f'weights = "{baseline[0] / "model.safetensors"}"\nbudget = 0.2\nepochs = 9\n')
    out, report = tmp_path / "run", tmp_path / "result.json"
    flags = ["--config", str(recipe_file), "--epochs", "1", "--out", str(out), "--json", str(report)]
    assert main(["replace", *flags]) == 0
    assert json.loads(report.read_text())["relus"] == 819
    assert json.loads((out / "settings.json").read_text())["epochs"] == 1
    capsys.readouterr()
    assert main(["evaluate", str(out), "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 360
    assert result["accuracy"] == pytest.approx(json.loads(report.read_text())["test_accuracy"])
    recipe_file.write_text("budgett = 3\n")
    assert main(["replace", "--config", str(recipe_file)]) == 2
    assert "did you mean 'budget'" in capsys.readouterr().err


def test_count_command_lists_every_site(capsys):
    assert main(["count", "resnet18", "--image-size", "32", "--classes", "100", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"] == "resnet18"
    assert result["total"] == sum(site["relus"] for site in result["sites"]) == 491_520
    assert len(result["sites"]) == 16
