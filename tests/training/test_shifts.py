"""Standard shifts: pixels stay pixels, every shift is a row, and the commands tell what a network loses."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from autorep import data
from autorep.cli.main import main
from autorep.replacement.reach import LIMIT
from autorep.training import ReplaceSettings, load_model, recipe, replace
from autorep.training.compiled import compile_saved
from autorep.training.shifts import SHIFTS, lost, measure, pixels_of, solid_colours


def test_shifts_do_what_their_names_say():
    pixels = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    changed = {name: shift(pixels) for name, shift in SHIFTS.items()}
    assert all(image.shape == pixels.shape for image in changed.values())
    torch.testing.assert_close(changed["brightness × 0.5"], pixels / 2)
    torch.testing.assert_close(changed["contrast × 1.5"].mean((1, 2, 3)), pixels.mean((1, 2, 3)))
    torch.testing.assert_close(changed["contrast × 1.5"].std((1, 2, 3)), 1.5 * pixels.std((1, 2, 3)))
    assert float((changed["noise 0.1"] - pixels).std()) == pytest.approx(0.1, rel=0.1)
    torch.testing.assert_close(changed["blur 3 × 3"][:, :, 3, 4], pixels[:, :, 2:5, 3:6].mean((2, 3)))
    colours = solid_colours(3, 8)
    assert colours.shape == (64, 3, 8, 8)
    assert len(colours[:, :, 0, 0].unique(dim=0)) == 64


@pytest.fixture(scope="module")
def replaced(baseline, tmp_path_factory):
    out = tmp_path_factory.mktemp("replaced") / "run"
    result = replace(ReplaceSettings(weights=baseline[0] / "model.safetensors", budget=0.1, epochs=6, out=out))
    return out, result


def test_a_finished_network_loses_none_of_its_training_images(replaced):
    out, result = replaced
    assert result["finished"]
    assert result["lost"] == 0
    assert result["lost_of"] == 1365
    saved, dataset = load_model(out), data.load("digits", None)
    program = compile_saved(saved)
    rows, plain = measure(saved.model, program, dataset.test, dataset, shifted=50)
    assert [row["shift"] for row in rows] == ["none", *SHIFTS, "solid colours"]
    assert [row["images"] for row in rows] == [360, *([50] * len(SHIFTS)), 4]
    assert rows[0]["accuracy"] == pytest.approx(result["test_accuracy"], abs=0.01)
    assert rows[0]["lost"] == 0
    assert plain.far.sum() == rows[0]["far"]


def test_images_beyond_what_the_program_holds_are_lost_and_wrong(replaced):
    saved, dataset = load_model(replaced[0]), data.load("digits", None)
    program = compile_saved(saved)
    logits = program.output
    program = dataclasses.replace(program, ops=(*program.ops[:-1], dataclasses.replace(logits, bits=logits.frac)))  # ±½
    rows, _ = measure(saved.model, program, dataset.test, dataset, shifted=10)
    assert rows[0]["lost"] == 360
    assert rows[0]["accuracy"] == 0
    assert lost(compile_saved(saved), pixels_of(dataset.test, 360)).sum() == 0


def test_evaluate_tells_lost_images_and_tails(replaced, capsys):
    assert main(["evaluate", str(replaced[0]), "--shifted", "40", "--other-data", "digits"]) == 0
    shown = capsys.readouterr().out
    assert "Lost images" in shown
    assert "contrast × 1.5" in shown
    assert main(["evaluate", str(replaced[0]), "--shifted", "40", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["range"] == LIMIT
    assert found["compiled"]
    assert len(found["tails"]) == len(load_model(replaced[0]).replacement.sites)


def test_a_network_that_loses_training_images_is_not_called_finished(baseline, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe, "LOST", -1.0)  # so that even none is too many
    weights = str(baseline[0] / "model.safetensors")
    assert main(["replace", "--weights", weights, "--epochs", "1", "--out", str(tmp_path / "run")]) == 1
    assert "NOT FINISHED" in capsys.readouterr().out
    assert not load_model(tmp_path / "run").info["result"]["finished"]


def test_pixels_come_in_order(replaced):
    digits = data.load("digits", None).test
    joined = torch.cat(list(pixels_of(digits, 360)))
    assert torch.equal(joined, digits.take(torch.arange(360)).float() / 255)
